"""Arithmetic with the counters of ports: sums, differences, rates."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from txrdma.fabric.errorcounters import DATA_COUNTERS, UNICAST_COUNTERS
from txrdma.fabric.linkspeeds import DATA_GIGABITS
from txrdma.fabric.model import Port
from txrdma.mad.layouts.attributes import Attribute

WORD: Final = 4
"""Bytes per unit of data counters (IBA 16.1.3.5)."""

_NO_COUNTERS: Final = ("portSelect", "counterSelect", "counterSelect2", "opCode")

TRAFFIC: Final = (*DATA_COUNTERS, *UNICAST_COUNTERS)


def bitErrorRate(port: Port, errors: float, seconds: float) -> float:
    """
    Return the bit error rate of a link, if each symbol error is one wrong bit; 0 if its speed is unknown.

    @param errors: symbol errors counted in C{seconds}.
    """
    bits = bitsEachSecond(port) * seconds
    return errors / bits if bits else 0.0


def bitsEachSecond(port: Port) -> float:
    """Return the signalling rate of a port's link in bit/s; 0 if its speed is unknown."""
    return port.width * port.laneGigabits * 1e9


def dataRate(port: Port) -> float:
    """Return the octets per second that a port's link carries at its width and speed; 0 if unknown."""
    return port.width * DATA_GIGABITS.get(port.activeSpeed, 0.0) * 125e6


def shareOf(port: Port, rate: float) -> float | None:
    """Return a rate in octets per second as a share of that of a port's link; None if that is unknown."""
    most = dataRate(port)
    return min(1.0, rate / most) if most else None


def counterNames(kind: type[Attribute]) -> list[str]:
    """Return the names of an attribute's counter fields."""
    return [field.name for field in kind.fields if not field.reserved and field.name not in _NO_COUNTERS]


def errorNames(kind: type[Attribute]) -> list[str]:
    """Return the names of an attribute's counters other than traffic counters."""
    return [name for name in counterNames(kind) if name not in TRAFFIC]


def added(answers: Sequence[Any], port: int) -> Any:
    """
    Add the counters of several ports into one attribute; each sum saturates like a counter.

    @param port: port number of the resulting attribute.
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
    return kind(portSelect=port, **values)  # type: ignore[call-arg]  # all counter attributes have portSelect


class Increase(NamedTuple):
    """
    Growth of counters between two readings.

    @ivar counted: increase by counter name; fields of several counters have an index, as C{"name[1]"}.
    @ivar saturated: counters that are at their maximum, and so may have missed events.
    @ivar cleared: counters that were reset between the readings.
    """

    counted: dict[str, int]
    saturated: tuple[str, ...] = ()
    cleared: tuple[str, ...] = ()

    def joined(self, other: Increase) -> Increase:
        """Return the combined growth of these and other counters of the same port."""
        return Increase(
            {**self.counted, **other.counted},
            *(one + more for one, more in zip(self[1:], other[1:], strict=True)),
        )


def changed(before: Any, after: Any, names: Iterable[str]) -> Increase:
    """
    Return the growth of some counters of an attribute between two readings.

    A counter saturates and does not wrap (IBA 16.1.3.5): one that is lower than before was cleared to zero.
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
    """Return the growth of one counter, and C{"saturated"}, C{"cleared"} or C{""}."""
    if new >= old:
        return new - old, "saturated" if new == (1 << width) - 1 else ""
    return new, "cleared"


@dataclass(frozen=True, slots=True)
class Rates:
    """Growth of a port's counters during C{seconds}."""

    port: int
    seconds: float
    increase: Increase

    @property
    def counted(self) -> dict[str, int]:
        return self.increase.counted

    def perSecond(self, name: str, unit: int = 1) -> float:
        """Return the growth of one counter per second, multiplied by C{unit}; 0 if it was not read."""
        return self.counted.get(name, 0) * unit / self.seconds if self.seconds > 0 else 0.0

    def toDict(self) -> dict[str, Any]:
        """Return the rates as a JSON-serializable dictionary."""
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
