"""
Performance management agents of a simulated fabric, which read and set the counters of its ports.

Follows InfiniBand Architecture vol. 1, 16.1.3 and 16.1.4.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Final, NamedTuple

from txrdma.fabric.errorcorrection import REED_SOLOMON
from txrdma.kit.rawfields import poke
from txrdma.mad.layouts import pma
from txrdma.mad.layouts.attributes import Attribute, Method
from txrdma.mad.layouts.capabilities import PerformanceCapability2
from txrdma.mad.layouts.messages import ClassPortInfo, MADHeader, MADStatus
from txrdma.mad.layouts.pma import PerformanceCapability
from txrdma.sim.fabric.model.counters import SimulatedCounters
from txrdma.sim.fabric.model.nodes import correctionOf, laneGigabits, SimulatedPort

GET: Final = int(Method.GET)
SET: Final = int(Method.SET)
ALL_PORTS: Final = 0xFF
RESPONSE_TIME: Final = 18
CLOCK_NANOSECONDS: Final = 4.0
"""Approximate length of a tick, which is rounded to the unit of the field: the time of ten bits on a lane."""

_CLASS_PORT_INFO: Final = 0x0001
_HEAD: Final = Struct(">2xBB12xH")
_DATA: Final = 64
_setMethod = poke(MADHeader, "method")
_setStatus = poke(MADHeader, "status")
_WIDE: Final = int(PerformanceCapability2.ADDITIONAL_PORT_COUNTERS_EXTENDED)
_ASKED_BYTES: Final = 4
"""Length of PortSelect and CounterSelect, which an answer repeats from the request."""

_ASKED: Final = ("portSelect", "counterSelect", "counterSelect2", "opCode")
_LAST_SELECTED: Final = ("portXmitWait", "qp1Dropped")
"""Counters of PortCounters that CounterSelect2 selects; other counters may follow them."""


class _Counter(NamedTuple):
    """One counter of an attribute, which bit C{bit} of the field C{selector} selects."""

    name: str
    key: str
    element: int | None
    highest: int
    selector: str
    bit: int


class _Group(NamedTuple):
    """An attribute with its counters, and its encoding when all are zero."""

    kind: type[Attribute]
    counters: tuple[_Counter, ...]
    nothing: bytes


def _group(kind: type[Attribute]) -> _Group:
    fields = {field.name: field for field in kind.fields}
    names = [name for name, field in fields.items() if not field.reserved and name not in _ASKED]
    late = _LAST_SELECTED if kind is pma.PortCounters else ()
    width = fields["counterSelect"].width
    counters = []
    bit = 0
    for name in [name for name in names if name not in late] + list(late):
        if name in late[:1]:
            bit = width  # continues with the second selector
        field = fields[name]
        if kind is pma.PortCountersExtended and name == "symbolErrorCounter":
            bit = width
        for element in range(field.count or 1):
            key, index = (name, None) if field.count is None else (f"{name}{element}", element)
            selected = ("counterSelect2", bit - width) if bit >= width else ("counterSelect", bit)
            counters.append(_Counter(name, key, index, (1 << field.width) - 1, *selected))
            bit += 1
    return _Group(kind, tuple(counters), kind().encode())


GROUPS: Final = {
    kind.attributeID: _group(kind)
    for kind in (
        *(pma.PortCounters, pma.PortCountersExtended, pma.PortRcvErrorDetails, pma.PortXmitDiscardDetails),
        *(pma.PortOpRcvCounters, pma.PortFlowCtlCounters, pma.PortVLOpPackets, pma.PortVLOpData),
        *(pma.PortVLXmitFlowCtlUpdateErrors, pma.PortVLXmitWaitCounters, pma.PortExtendedSpeedsCounters),
        *(pma.SwPortVLCongestion, pma.PortRcvConCtrl, pma.PortSLRcvFECN, pma.PortSLRcvBECN),
        *(pma.PortXmitConCtrl, pma.PortVLXmitTimeCong, pma.PortXmitDataSL, pma.PortRcvDataSL),
    )
}
"""
Attributes with counters, by attribute ID. Counters have the names of their fields, with an index for arrays.
"""


_REED_SOLOMON: Final = _group(pma.PortExtendedSpeedsCountersRSFEC)

NAMES: Final = frozenset(
    counter.key for group in (*GROUPS.values(), _REED_SOLOMON) for counter in group.counters
)
"""Names of all counters."""


def countersIn(answer: Attribute) -> dict[str, int]:
    """Return the counters of an attribute by the names that simulated ports have for them."""
    group = _REED_SOLOMON if isinstance(answer, pma.PortExtendedSpeedsCountersRSFEC) else None
    group = group or GROUPS[answer.attributeID]
    values: dict[str, int] = {}
    for name, key, element, _highest, _selector, _bit in group.counters:
        value = getattr(answer, name)
        values[key] = value if element is None else value[element]
    return values


class PerformanceManagementAgents:
    """Performance management agents of all nodes of a simulated fabric."""

    def __init__(self, seconds: Callable[[], float]) -> None:
        """@param seconds: returns the current time, for counters that grow."""
        self._seconds = seconds

    def answer(self, port: SimulatedPort, datagram: bytes) -> bytearray:
        """Return the answer to a request received by a port."""
        version, method, attribute = _HEAD.unpack_from(datagram)
        reply = bytearray(datagram)
        _setMethod(reply, Method.GET_RESP)
        status: int = 0
        if version != 1:
            status = MADStatus.UNSUPPORTED_VERSION
        elif method not in (GET, SET):
            status = MADStatus.UNSUPPORTED_METHOD
        elif attribute == _CLASS_PORT_INFO and method == GET:
            self._classPortInfo(port).encodeInto(reply, _DATA)
        elif attribute == pma.PortSamplesControl.attributeID and method == GET:
            status = self._samplesControl(port, reply)
        elif attribute in GROUPS:
            status = self._counters(port, GROUPS[attribute], method, reply)
        else:
            status = MADStatus.UNSUPPORTED_METHOD_ATTRIBUTE
        _setStatus(reply, status)
        return reply

    @staticmethod
    def _classPortInfo(port: SimulatedPort) -> ClassPortInfo:
        capabilities = PerformanceCapability.EXTENDED_WIDTH | PerformanceCapability.XMIT_WAIT
        if port.node.isSwitch:
            capabilities |= PerformanceCapability.ALL_PORT_SELECT
        if any(correctionOf(one) is not None for one in port.node.external):
            capabilities |= PerformanceCapability.RS_FEC
        return ClassPortInfo(
            baseVersion=1,
            classVersion=1,
            capabilityMask=capabilities,
            capabilityMask2=_WIDE if port.node.countsWide else 0,
            responseTimeValue=RESPONSE_TIME,
        )

    def _counters(self, port: SimulatedPort, group: _Group, method: int, reply: bytearray) -> int:
        """Set the counters if the method is Set, and write them into the reply; return the MAD status."""
        ports = _selected(port, reply[_DATA + 1])
        if not ports:
            return MADStatus.INVALID_FIELD
        if group.kind is pma.PortExtendedSpeedsCounters and correctionOf(ports[0]) in REED_SOLOMON:
            group = _REED_SOLOMON
        now = self._seconds()
        if method == SET:
            self._set(ports, group, reply, now)
        counted = [one.counters for one in ports if one.counters is not None]
        head = bytes(reply[_DATA : _DATA + _ASKED_BYTES])
        content = _encoded(group, counted, now) if counted else group.nothing
        reply[_DATA : _DATA + len(content)] = content
        reply[_DATA : _DATA + _ASKED_BYTES] = head
        return 0

    @staticmethod
    def _samplesControl(port: SimulatedPort, reply: bytearray) -> int:
        """Write the PortSamplesControl of a port, which takes no samples; return the MAD status."""
        ports = _selected(port, reply[_DATA + 1])
        if len(ports) != 1 or reply[_DATA + 1] == ALL_PORTS:
            return MADStatus.INVALID_FIELD
        control = pma.PortSamplesControl(portSelect=ports[0].number, tick=tickOf(ports[0]))
        control.encodeInto(reply, _DATA)
        return 0

    @staticmethod
    def _set(ports: list[SimulatedPort], group: _Group, reply: bytearray, now: float) -> None:
        request = group.kind.decode(reply, _DATA)
        for name, key, element, _highest, selector, bit in group.counters:
            if getattr(request, selector, 0) >> bit & 1:
                value = getattr(request, name)
                for port in ports:
                    port.count().set(now, **{key: value if element is None else value[element]})


def tickOf(port: SimulatedPort) -> int:
    """Return the length of a port's tick, encoded as the field Tick of PortSamplesControl (IBA 16.1.3.2)."""
    return max(0, min(255, round(CLOCK_NANOSECONDS * (laneGigabits(port) or 2.5) / 10) - 1))


def _selected(port: SimulatedPort, number: int) -> list[SimulatedPort]:
    """Return the ports that PortSelect selects; none if there is no such port."""
    node = port.node
    if not node.isSwitch:
        return [port] if number == port.number else []
    if number == ALL_PORTS:
        return node.external
    return node.ports[number : number + 1]


def _encoded(group: _Group, counted: list[SimulatedCounters], now: float) -> bytes:
    """Return the encoded attribute, with sums over the ports. A counter stops at its maximum."""
    first, *others = counted
    isStill = not others and not first.isGrowing
    if isStill and group.kind in first.encoded:
        return first.encoded[group.kind]
    values: dict[str, int | list[int]] = {}
    for name, key, element, highest, _selector, _bit in group.counters:
        value = first.value(key, now)
        for counters in others:
            value += counters.value(key, now)
        value = min(highest, value)
        if element is None:
            values[name] = value
        else:
            several = values.setdefault(name, [])
            assert isinstance(several, list)
            several.append(value)
    encoded = group.kind(
        **{name: tuple(v) if isinstance(v, list) else v for name, v in values.items()}
    ).encode()
    if isStill:
        first.encoded[group.kind] = encoded
    return encoded
