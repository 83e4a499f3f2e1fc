"""
Readings of ports' counters: which attributes are asked for, and how their fields make one reading.

Traffic is taken from the counters of 64 bits where a port has them: at NDR one of 32 bits is full after a
third of a second. Nothing is ever cleared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any, Final

from txrdma.fabric.errorcounters import (
    Abilities,
    DATA_COUNTERS,
    ERROR_COUNTERS,
    UNICAST_COUNTERS,
)
from txrdma.fabric.rates import WORD
from txrdma.iba.path import IBPath
from txrdma.mad.layouts.attributes import Attribute
from txrdma.mad.layouts.messages import ClassPortInfo
from txrdma.mad.layouts.pma import PortCounters, PortCountersExtended
from txrdma.mad.rpcs import RPCs
from txrdma.monitor._counters import CounterLayout

_UNITS: Final = {"portXmitData": WORD, "portRcvData": WORD}


def _taken(kind: type[Attribute], names: Iterable[str]) -> tuple[dict[str, int], Callable[[Any], Any]]:
    """Widths of some counters of an attribute, and what reads them as a tuple."""
    widths = {field.name: field.width for field in kind.fields}
    return {name: widths[name] for name in names}, attrgetter(*names)


class ReadingKind:
    """
    Kind of reading that a node's performance management agent can give.

    @ivar layout: order of the values in a reading.
    """

    __slots__ = ("_parts", "layout")

    def __init__(self, *parts: tuple[type[Attribute], tuple[str, ...]]) -> None:
        """@param parts: attributes to ask for, and names of the counters to take from each."""
        bits: dict[str, int] = {}
        self._parts: list[tuple[Callable[..., Attribute], Callable[[Any], Any]]] = []
        for kind, names in parts:
            widths, taken = _taken(kind, names)
            bits |= widths
            self._parts.append((kind, taken))
        self.layout = CounterLayout(bits, _UNITS)

    async def ask(
        self, rpcs: RPCs, path: IBPath, number: int, timeoutSeconds: float, retries: int
    ) -> tuple[int, ...]:
        """
        Ask for the counters of a port.

        @param path: path to the agent; C{number} is the number of the port.
        @raise txrdma.mad.errors.MADFailure: an attribute was refused, or not answered in time.
        """
        values: tuple[int, ...] = ()
        for kind, taken in self._parts:
            told = await rpcs.PerformanceGet(
                kind(portSelect=number), path, timeoutSeconds=timeoutSeconds, retries=retries
            )
            values += taken(told)
        return values


NARROW: Final = ReadingKind((PortCounters, ERROR_COUNTERS + DATA_COUNTERS))
"""Reading of a port that counts traffic in 32 bits alone."""

MIXED: Final = ReadingKind((PortCounters, ERROR_COUNTERS), (PortCountersExtended, DATA_COUNTERS))
"""Reading of a port that counts traffic in 64 bits, but unicast and multicast not apart."""

MIXED_CASTS: Final = ReadingKind(
    (PortCounters, ERROR_COUNTERS), (PortCountersExtended, DATA_COUNTERS + UNICAST_COUNTERS)
)
"""Reading of a port that counts traffic in 64 bits, and errors in fewer."""

WIDE: Final = ReadingKind((PortCountersExtended, ERROR_COUNTERS + DATA_COUNTERS + UNICAST_COUNTERS))
"""Reading of a port that counts everything in 64 bits: one datagram has it all."""


async def kindOf(rpcs: RPCs, path: IBPath, timeoutSeconds: float, retries: int) -> ReadingKind:
    """
    Ask a node's agent (ClassPortInfo) which kind of reading it can give.

    @raise txrdma.mad.errors.MADFailure: the agent refuses, or does not answer in time.
    """
    told = await rpcs.PerformanceGet(ClassPortInfo, path, timeoutSeconds=timeoutSeconds, retries=retries)
    able = Abilities(told.capabilityMask, told.capabilityMask2)
    if able.hasWideErrors:
        return WIDE
    if able.isWide:
        return MIXED_CASTS if able.hasCasts else MIXED
    return NARROW
