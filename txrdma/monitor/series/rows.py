"""
Rows of a history: the growth of a port's counters between two readings, in one of two families.

Counters that all ports have are read in each interval, error correction counters once a minute. So each
family has its own rows and tables, with the times of its own readings.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Final, NamedTuple

from txrdma.error import InvalidRequest
from txrdma.fabric.errorcorrection import CORRECTED, SYMBOLS
from txrdma.fabric.errorcounters import UNCORRECTABLE
from txrdma.fabric.metricnames import FAMILIES
from txrdma.fabric.model import PortKey
from txrdma.fabric.portcounters import CounterLayout, Meter
from txrdma.monitor.series.database import Columns

_MOST: Final = 1 << 50
"""Growth in one reading beyond which a counter is ignored: sums of it would not fit."""


class ColumnFamily:
    """
    Counters that are read together, and have their rows in the same tables.

    @ivar head: prefix of the names of the tables.
    @ivar counters: counters that are stored; data in octets.
    @ivar peaks: columns of the highest rates, by counter.
    @ivar bounded: counters whose growth is unknown while they are at their maximum: those with peaks, or all
        without any, such as those of error correction, which reach it within hours at HDR.
    @ivar columns: columns of the tables; C{names} are the same in SQL. C{summed} are those of a coarser row
        in SQL, and C{replaced} is the clause that updates an existing row.
    @ivar seriesNames: names of the series of a row's values in another engine, in their order.
    """

    def __init__(self, head: str, counters: tuple[str, ...], peaks: Mapping[str, str]) -> None:
        self.head = head
        self.counters = counters
        self.peaks = peaks
        self.bounded = tuple(peaks) or counters
        self.columns: Columns = {
            "port": int,
            "at": int,
            "seconds": float,
            **dict.fromkeys(counters, int),
            **dict.fromkeys(peaks.values(), float),
        }
        self.seriesNames = (f"{head}seconds", *counters, *peaks.values())
        self.names = ", ".join(f'"{name}"' for name in self.columns)
        sums = [f'sum("{name}")' for name in ("seconds", *counters)]
        self.summed = ", ".join([*sums, *(f'max("{name}")' for name in peaks.values())])
        self.replaced = "ON CONFLICT (port, at) DO UPDATE SET " + ", ".join(
            f'"{name}" = excluded."{name}"' for name in self.columns if name not in ("port", "at")
        )


COUNTERS: Final = tuple(FAMILIES)
"""Stored counters of all ports, data in octets."""

TRAFFIC: Final = ColumnFamily("", COUNTERS, {"portXmitData": "peakXmit", "portRcvData": "peakRcv"})
"""Columns of the counters that all ports have."""

CORRECTIONS: Final = ColumnFamily("fec_", (UNCORRECTABLE, CORRECTED, SYMBOLS), {})
"""Columns of the counters of forward error correction, of ports whose links have it."""

COLUMN_FAMILIES: Final = (TRAFFIC, CORRECTIONS)


def familyOf(counter: str) -> ColumnFamily:
    """Return the columns that include a counter; raise L{InvalidRequest} if it has no history."""
    for family in COLUMN_FAMILIES:
        if counter in family.counters:
            return family
    raise InvalidRequest(f"no history has a counter {counter!r}")


RENAMED: Final[Mapping[str, str]] = {}
"""New names of renamed counters, by their names in histories of older releases."""

STORED_COUNTERS: Final = tuple(counter for family in COLUMN_FAMILIES for counter in family.counters)
"""All counters that have a history."""


class Row(NamedTuple):
    """
    Growth of a port's counters during a time, to be stored.

    @ivar at: end of that time, in seconds since 1970.
    @ivar values: duration in seconds; growth of the family's counters, None if unknown; the highest rates of
        data sent and received, in octets per second, if the family has them.
    """

    portKey: PortKey
    at: int
    values: tuple[float | None, ...]
    family: ColumnFamily = TRAFFIC


class _Plan:
    """The order of a layout's counters in a row of a family, computed once for all ports."""

    __slots__ = ("bounded", "columns", "still")

    def __init__(self, family: ColumnFamily, layout: CounterLayout) -> None:
        known = [
            (layout.indices.get(name), layout.unit(name) if name in layout.indices else 1)
            for name in family.counters
        ]
        self.columns = known
        self.still: list[float | None] = [None if index is None else 0 for index, _unit in known]
        self.bounded = [(column, *known[column]) for column in map(family.counters.index, family.bounded)]


_planOf = lru_cache(maxsize=64)(_Plan)


def rowOf(family: ColumnFamily, portKey: PortKey, meter: Meter, at: float) -> Row | None:
    """
    Return the last growth of a port's counters as a row; None without two readings, and in a gap.

    @param at: time of the last reading in seconds since 1970, unlike the reactor's time.
    """
    seconds = meter.seconds
    if meter.isSilent or seconds <= 0:
        return None
    layout, grown = meter.layout, meter.grown
    plan = _planOf(family, layout)
    if grown is layout.nothing:
        counts = plan.still.copy()
    else:
        counts = [None if index is None else grown[index] * unit for index, unit in plan.columns]
    rates: list[float | None] = []
    for column, index, unit in plan.bounded:
        if index is None or layout.isFull(index, meter.values[index]):
            counts[column] = None
            rates.append(None)
        else:
            rates.append(grown[index] * unit / seconds)
    if max(grown) >= _MOST >> 3:  # octets of words
        counts = [None if count is None or count >= _MOST else count for count in counts]
    return Row(portKey, int(at), (seconds, *counts, *rates[: len(family.peaks)]), family)
