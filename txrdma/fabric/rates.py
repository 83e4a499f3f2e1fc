"""Arithmetic with the counters of ports: sums, differences, rates."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from txrdma.fabric.model import Port
from txrdma.mad.layouts.attributes import Attribute

WORD: Final = 4
"""Bytes in a unit of data counters (IBA 16.1.3.5)."""

_NO_COUNTERS: Final = ("portSelect", "counterSelect", "counterSelect2", "opCode")

_RATED: Final = ("portXmitData", "portRcvData", "portXmitPkts", "portRcvPkts")
_CASTS: Final = tuple(
    f"port{cast}{direction}Pkts" for cast in ("Unicast", "Multicast") for direction in ("Xmit", "Rcv")
)
TRAFFIC: Final = (*_RATED, *_CASTS)


def bitErrorRate(port: Port, errors: int, seconds: float) -> float:
    """
    Rate of bit errors of a port's link, if each symbol error is one wrong bit; 0 where its speed is unknown.

    @param errors: symbol errors counted in that time.
    """
    bits = bitsEachSecond(port) * seconds
    return errors / bits if bits else 0.0


def bitsEachSecond(port: Port) -> float:
    """Signalling rate of a port's link, in bit/s; 0 where its speed is unknown."""
    return port.width * port.laneGigabits * 1e9


def counterNames(kind: type[Attribute]) -> list[str]:
    """Names of an attribute's fields that are counters."""
    return [field.name for field in kind.fields if not field.reserved and field.name not in _NO_COUNTERS]


def errorNames(kind: type[Attribute]) -> list[str]:
    """Names of an attribute's counters that count no traffic."""
    return [name for name in counterNames(kind) if name not in TRAFFIC]


def added(answers: Sequence[Any], port: int) -> Any:
    """
    Sum of the counters of several ports, as one attribute; like a counter it stops at the highest value.

    @param port: port number to put into the sum.
    """
    kind: type[Attribute] = type(answers[0])
    values: dict[str, Any] = {}
    for field in kind.fields:
        if field.name in counterNames(kind):
            most = (1 << field.width) - 1
            numbers = [getattr(one, field.name) for one in answers]
            if field.count is None:
                values[field.name] = min(most, sum(numbers))
            else:
                values[field.name] = tuple(min(most, sum(each)) for each in zip(*numbers, strict=True))
    return kind(portSelect=port, **values)  # type: ignore[call-arg]  # all that count have it


class Increase(NamedTuple):
    """
    Growth of counters between two readings.

    @ivar counted: by the counter's name; for a field of several counters with the index, as C{"name[1]"}.
    @ivar saturated: counters that stand at their highest value, and so may have missed some; C{cleared} are
        those that were set to zero meanwhile.
    """

    counted: dict[str, int]
    saturated: tuple[str, ...] = ()
    cleared: tuple[str, ...] = ()

    def joined(self, other: Increase) -> Increase:
        """Growth of these and of other counters of the same port, in one."""
        return Increase(
            {**self.counted, **other.counted},
            *(one + more for one, more in zip(self[1:], other[1:], strict=True)),
        )


def changed(before: Any, after: Any, names: Iterable[str]) -> Increase:
    """
    Growth of some counters of an attribute between two readings.

    A counter stops at its highest value and does not wrap (IBA 16.1.3.5): one that is lower than before was
    cleared, and began at zero again.
    """
    wanted = frozenset(names)
    counted: dict[str, int] = {}
    marks: dict[str, list[str]] = {"saturated": [], "cleared": []}
    for field in type(after).fields:
        if field.name not in wanted:
            continue
        olds, news = getattr(before, field.name), getattr(after, field.name)
        if field.count is None:
            pairs = [(field.name, olds, news)]
        else:
            pairs = [
                (f"{field.name}[{at}]", old, new)
                for at, (old, new) in enumerate(zip(olds, news, strict=True))
            ]
        for name, old, new in pairs:
            counted[name], mark = _grown(old, new, field.width)
            if mark:
                marks[mark].append(name)
    return Increase(counted, *(tuple(each) for each in marks.values()))


def _grown(old: int, new: int, width: int) -> tuple[int, str]:
    """Growth of one counter, and C{"saturated"} or C{"cleared"} if it is that, else C{""}."""
    if new >= old:
        return new - old, "saturated" if new == (1 << width) - 1 else ""
    return new, "cleared"


@dataclass(frozen=True, slots=True)
class Rates:
    """Growth of a port's counters in a period of some seconds."""

    port: int
    seconds: float
    increase: Increase

    @property
    def counted(self) -> dict[str, int]:
        return self.increase.counted

    def perSecond(self, name: str, unit: int = 1) -> float:
        """Growth of one counter in a second, times C{unit}; 0 when it was not read."""
        return self.counted.get(name, 0) * unit / self.seconds if self.seconds > 0 else 0.0

    def toDict(self) -> dict[str, Any]:
        """Rates as JSON can carry them."""
        return {
            "port": self.port,
            "seconds": round(self.seconds, 6),
            "xmitBytesPerSecond": round(self.perSecond("portXmitData", WORD), 3),
            "rcvBytesPerSecond": round(self.perSecond("portRcvData", WORD), 3),
            "xmitPktsPerSecond": round(self.perSecond("portXmitPkts"), 3),
            "rcvPktsPerSecond": round(self.perSecond("portRcvPkts"), 3),
            "counted": self.counted,
            "saturated": list(self.increase.saturated),
            "cleared": list(self.increase.cleared),
        }
