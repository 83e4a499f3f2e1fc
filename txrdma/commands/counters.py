"""
Arithmetic with ports' counters: sums, differences, rates.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TYPE_CHECKING

from txrdma.commands.tables import makeTable
from txrdma.mad.attributes import Attribute

if TYPE_CHECKING:
    from rich.table import Table

WORD: Final = 4
"""Bytes in a unit of data counters (IBA 16.1.3.5)."""

_NO_COUNTERS: Final = ("portSelect", "counterSelect", "counterSelect2", "opCode")
_TRAFFIC: Final = ("portXmitData", "portRcvData", "portXmitPkts", "portRcvPkts")


def counterNames(kind: type[Attribute]) -> list[str]:
    """Its fields that count something."""
    return [field.name for field in kind.fields if not field.reserved and field.name not in _NO_COUNTERS]


def added(told: Sequence[Any], port: int) -> Any:
    """
    The sum of what several ports have counted; like a counter it stops at the highest value.

    @param port: what the sum is said to be of.
    """
    kind: type[Attribute] = type(told[0])
    values: dict[str, Any] = {}
    for field in kind.fields:
        if field.name in counterNames(kind):
            most = (1 << field.width) - 1
            numbers = [getattr(one, field.name) for one in told]
            if field.count is None:
                values[field.name] = min(most, sum(numbers))
            else:
                values[field.name] = tuple(min(most, sum(each)) for each in zip(*numbers, strict=True))
    return kind(portSelect=port, **values)  # type: ignore[call-arg]  # all that count have it


def changed(before: Any, after: Any, names: Iterable[str]) -> dict[str, int]:
    """How much has been counted between two looks; what was cleared meanwhile began at zero again."""
    found = {}
    for name in names:
        old, new = getattr(before, name), getattr(after, name)
        if isinstance(new, tuple):
            old, new = sum(old), sum(new)
        found[name] = new - old if new >= old else new
    return found


@dataclass(frozen=True, slots=True)
class Rates:
    """What a port has counted in a time."""

    port: int
    seconds: float
    counted: dict[str, int]

    def perSecond(self, name: str, unit: int = 1) -> float:
        """How much of it in a second; 0 when that was not counted."""
        return self.counted.get(name, 0) * unit / self.seconds if self.seconds > 0 else 0.0

    def toDict(self) -> dict[str, Any]:
        """For programs."""
        return {
            "port": self.port,
            "seconds": round(self.seconds, 6),
            "xmitBytesPerSecond": round(self.perSecond("portXmitData", WORD), 3),
            "rcvBytesPerSecond": round(self.perSecond("portRcvData", WORD), 3),
            "xmitPktsPerSecond": round(self.perSecond("portXmitPkts"), 3),
            "rcvPktsPerSecond": round(self.perSecond("portRcvPkts"), 3),
            "counted": self.counted,
        }


def ratesTable(rates: Iterable[Rates]) -> Table:
    """For people: traffic in a second, and what else has counted."""
    table = makeTable(
        "port", "sent MB/s", "received MB/s", "sent packets/s", "received packets/s", "other counters"
    )
    for each in rates:
        others = [
            f"{name} +{number}" for name, number in each.counted.items() if number and name not in _TRAFFIC
        ]
        table.add_row(
            "all" if each.port == 0xFF else str(each.port),
            f"{each.perSecond('portXmitData', WORD) / 1e6:,.3f}",
            f"{each.perSecond('portRcvData', WORD) / 1e6:,.3f}",
            f"{each.perSecond('portXmitPkts'):,.0f}",
            f"{each.perSecond('portRcvPkts'):,.0f}",
            "\n".join(others),
        )
    return table
