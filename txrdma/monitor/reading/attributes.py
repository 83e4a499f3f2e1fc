"""
The attributes with a port's counters, and their fields in a reading.

Traffic is read from 64-bit counters if a port has them: at NDR a 32-bit counter reaches its maximum within a
third of a second. Counters are never cleared.
"""

from __future__ import annotations

from functools import cache
from typing import Any, ClassVar, Final

from txrdma.fabric.errorcounters import (
    CounterCapabilities,
    DATA_COUNTERS,
    ERROR_COUNTERS,
    UNICAST_COUNTERS,
)
from txrdma.fabric.portcounters import CounterLayout
from txrdma.fabric.rates import WORD
from txrdma.kit.rawfields import peeks
from txrdma.mad.layouts.attributes import Attribute
from txrdma.mad.layouts.messages import ClassPortInfo
from txrdma.mad.layouts.pma import PerformanceCapability, PortCounters, PortCountersExtended

_UNITS: Final = {"portXmitData": WORD, "portRcvData": WORD}


class Counters(Attribute):
    """An attribute decoded as a tuple of the counters in use; decoding all takes ten times as long."""

    widths: ClassVar[dict[str, int]]
    whole: ClassVar[type[Any]]


def _counters(kind: type[Attribute], names: tuple[str, ...]) -> type[Counters]:
    bits = {field.name: field.width for field in kind.fields}
    widths = {name: bits[name] for name in names}
    content = {"attributeID": kind.attributeID, "rpcs": kind.rpcs, "size": kind.size, "whole": kind}
    content |= {"decode": staticmethod(peeks(kind, names)), "widths": widths}
    return type(f"_{kind.__name__}", (Counters,), content)  # private: not to be found by name


class ReadingKind:
    """
    The kind of reading that a node's performance management agent supports.

    @ivar layout: order of the values in a reading.
    @ivar parts: attributes that make it. C{attributes} has their IDs.
    """

    __slots__ = ("_requests", "attributes", "layout", "parts")

    def __init__(self, *parts: tuple[type[Attribute], tuple[str, ...]]) -> None:
        """@param parts: attributes to query, and names of the counters to take from each."""
        self.parts = tuple(_counters(*part) for part in parts)
        self.layout = CounterLayout(
            {name: width for part in self.parts for name, width in part.widths.items()}, _UNITS
        )
        self.attributes = tuple(part.attributeID for part in self.parts)
        self._requests: dict[int, tuple[bytes, ...]] = {}

    def decode(self, content: bytes) -> tuple[int, ...]:
        """Return the values of a reading from its attributes, one after the other."""
        values: tuple[int, ...] = ()
        at = 0
        for part in self.parts:
            decoded: Any = part.decode(content, at)
            values += decoded
            at += part.size
        return values

    def requests(self, number: int) -> tuple[bytes, ...]:
        """Return the contents of the requests for the counters of a port, one for each part."""
        known = self._requests.get(number)
        if known is None:
            known = tuple(part.whole(portSelect=number).encode() for part in self.parts)
            self._requests[number] = known
        return known


_OPTIONAL: Final = {
    "portXmitWait": PerformanceCapability.XMIT_WAIT,
    "qp1Dropped": PerformanceCapability.QP1_DROP,
}
"""Optional counters, and the capabilities that announce them."""


def kindOf(info: ClassPortInfo) -> ReadingKind:
    """Return the kind of reading that an agent supports, by its ClassPortInfo."""
    able = CounterCapabilities(info.capabilityMask, info.capabilityMask2)
    # Counters that the agent does not have would always be zero.
    lacks = {name for name, bit in _OPTIONAL.items() if not info.capabilityMask & bit}
    errors = tuple(name for name in ERROR_COUNTERS if name not in lacks)
    if able.hasWideErrors:  # one datagram contains all counters
        return _kindOf((PortCountersExtended, errors + DATA_COUNTERS + UNICAST_COUNTERS))
    if able.isWide:
        traffic = DATA_COUNTERS + (UNICAST_COUNTERS if able.hasCasts else ())
        return _kindOf((PortCounters, errors), (PortCountersExtended, traffic))
    return _kindOf((PortCounters, errors + DATA_COUNTERS))


@cache
def _kindOf(*parts: tuple[type[Attribute], tuple[str, ...]]) -> ReadingKind:
    """Return one kind for all nodes with the same counters: their ports share columns."""
    return ReadingKind(*parts)
