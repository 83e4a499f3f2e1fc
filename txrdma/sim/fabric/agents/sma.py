"""
Subnet management agents of a simulated fabric, which answer SMPs by the attributes of its ports.

Follows InfiniBand Architecture vol. 1, 14.2 (SMPs), 14.2.4 (M_Keys) and 14.2.5 (attributes). One object
serves all nodes; it works on the encoded attributes of the port that received the request.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from struct import Struct
from typing import Final

from txrdma.kit.rawfields import peek, poke, span
from txrdma.mad.errors import MADRefusal
from txrdma.mad.layouts import adaptive, smp
from txrdma.mad.layouts.attributes import Method
from txrdma.mad.layouts.messages import MADHeader, MADStatus
from txrdma.mad.layouts.smp import NodeInfo, PortInfo, SwitchInfo
from txrdma.sim.fabric.agents.mkeys import ManagementKeys
from txrdma.sim.fabric.agents.portsetting import setPortInfo
from txrdma.sim.fabric.agents.sminfo import SMInfoAgent
from txrdma.sim.fabric.model import pkeys
from txrdma.sim.fabric.model.forwarding import tableOf
from txrdma.sim.fabric.model.nodes import (
    EXTENDED_PORT_INFO,
    guidCap,
    MULTICAST_CAP,
    PORT_INFO_EXTENDED,
    SimulatedPort,
)

GET: Final = int(Method.GET)
SET: Final = int(Method.SET)
GUID_INFO: Final = smp.GUIDInfo.attributeID
PORT_INFO: Final = PortInfo.attributeID
SM_INFO: Final = smp.SMInfo.attributeID
PKEY_TABLE: Final = smp.PKeyTable.attributeID
LANES: Final = smp.SLtoVLMappingTable.attributeID
ARBITRATION: Final = smp.VLArbitrationTable.attributeID

ADAPTIVE: Final = tuple(
    each.attributeID
    for each in (
        adaptive.AdaptiveRoutingInfo,
        adaptive.AdaptiveGroupTable,
        adaptive.AdaptiveForwardingTable,
    )
)

_SETTABLE: Final = (
    *("linearFDBTop", "defaultPort", "defaultMulticastPrimaryPort", "defaultMulticastNotPrimaryPort"),
    *("lifeTimeValue", "optimizedSLtoVLMappingProgramming", "multicastFDBTop"),
)
"""Fields of SwitchInfo that a subnet manager can set."""

NO_ATTRIBUTE: Final = MADStatus.UNSUPPORTED_METHOD_ATTRIBUTE

_HEAD: Final = Struct(">2xBB12xH2xIQ")
_PORT_OF: Final = 0xFF
_NO_PORT: Final = b"\xff" * 64
_NOTHING: Final = bytes(64)
_ALL_STATIC: Final = adaptive.AdaptiveEntry(state=adaptive.LIDState.STATIC).encode() * 16
_MKEY: Final = span(PortInfo, "mkey")
_DATA: Final = slice(64, 128)
"""The attribute, in SMPs of either kind (IBA 14.2.1)."""

_DATA_MKEY: Final = slice(_DATA.start + _MKEY.start, _DATA.start + _MKEY.stop)
_BEFORE_PORT: Final = slice(0, span(NodeInfo, "nodeGUID").stop)
_BETWEEN: Final = span(NodeInfo, "partitionCap", "revision")
_VENDOR: Final = span(NodeInfo, "vendorID")
_AFTER_NODE_INFO: Final = bytes(64 - NodeInfo.size)
_RESPONSE: Final = 0x80
_setMethod = poke(MADHeader, "method")
_setStatus = poke(MADHeader, "status")
_setNumber = poke(PortInfo, "localPortNum")
_reregisters = peek(PortInfo, "clientReregister")
_linearCap = peek(SwitchInfo, "linearFDBCap")
_LANES: Final = smp.SLtoVLMappingTable(vls=(*range(15), 7)).encode()
_LOW: Final = smp.VLArbitrationTable(
    entries=tuple(smp.VLWeight(vl=vl, weight=4 if vl else 0) for vl in range(8)) + (smp.VLWeight(),) * 24
).encode()
_HIGH: Final = smp.VLArbitrationTable(
    entries=tuple(smp.VLWeight(vl=vl, weight=0 if vl else 4) for vl in range(8)) + (smp.VLWeight(),) * 24
).encode()


class SubnetManagementAgents:
    """
    Subnet management agents of all nodes of a simulated fabric.

    @ivar mkeys: M_Keys of all ports.
    @ivar managers: subnet managers by their ports, including standby ones.
    """

    def __init__(self, changed: Callable[[SimulatedPort], None], mkeys: ManagementKeys) -> None:
        """@param changed: called with each port whose state a Set has changed."""
        self._changed = changed
        self.mkeys = mkeys
        self.managers: dict[SimulatedPort, SMInfoAgent] = {}
        self._gets: dict[int, Callable[[SimulatedPort, int], bytes]] = {
            smp.NodeDescription.attributeID: self._description,
            NodeInfo.attributeID: self._nodeInfo,
            SwitchInfo.attributeID: self._switchInfo,
            GUID_INFO: self._guids,
            PORT_INFO: self._portInfo,
            PKEY_TABLE: self._pkeys,
            LANES: self._lanes,
            ARBITRATION: self._arbitration,
            smp.LinearForwardingTable.attributeID: self._forwarding,
            smp.MulticastForwardingTable.attributeID: self._multicast,
            SM_INFO: self._manager,
            smp.ExtendedPortInfo.attributeID: self._extended,
            smp.PortInfoExtended.attributeID: self._corrected,
            **{number: partial(self._adaptive, number) for number in ADAPTIVE},
        }
        self._sets: dict[int, Callable[[SimulatedPort, int, bytes], bytes]] = {
            SwitchInfo.attributeID: self._setSwitchInfo,
            GUID_INFO: self._setGUIDs,
            PORT_INFO: self._setPortInfo,
            PKEY_TABLE: self._setPKeys,
            LANES: self._setLanes,
            ARBITRATION: self._setArbitration,
            smp.LinearForwardingTable.attributeID: self._setForwarding,
            smp.MulticastForwardingTable.attributeID: self._setMulticast,
            SM_INFO: self._control,
            smp.ExtendedPortInfo.attributeID: self._setExtended,
        }

    def answer(self, port: SimulatedPort, datagram: bytes) -> bytearray | None:
        """
        Answer a request that a port received.

        @return: the answer, without the fields of a directed route; None if there is no answer.
        """
        version, method, attribute, modifier, mkey = _HEAD.unpack_from(datagram)
        node, end = port.node, port.end
        reply = bytearray(datagram)
        _setMethod(reply, Method.GET_RESP)
        if any(end.info[_MKEY]) and not self.mkeys.permits(end, method, mkey, datagram):
            return None
        status = 0
        if node.busyFor:
            node.busyFor -= 1
            status = MADStatus.BUSY
        elif version != 1:
            status = MADStatus.UNSUPPORTED_VERSION
        elif method in (GET, SET):
            try:
                reply[_DATA] = self._content(port, method, attribute, modifier, datagram[_DATA])
                if method == GET and attribute == PORT_INFO and self.mkeys.hides(end, mkey):
                    reply[_DATA_MKEY] = _NOTHING[_MKEY]
            except MADRefusal as refusal:
                status = refusal.status
        elif method & _RESPONSE or method in (Method.TRAP, Method.TRAP_REPRESS):
            return None
        else:
            status = MADStatus.UNSUPPORTED_METHOD
        _setStatus(reply, status)
        return reply

    def _content(
        self, port: SimulatedPort, method: int, attribute: int, modifier: int, content: bytes
    ) -> bytes:
        if method == GET and attribute in self._gets:
            return self._gets[attribute](port, modifier)
        if method == SET and attribute in self._sets:
            return self._sets[attribute](port, modifier, content)
        raise MADRefusal(NO_ATTRIBUTE)

    def attributeOf(self, port: SimulatedPort, attribute: int, modifier: int) -> bytes:
        """Return an encoded attribute of a port, as the answer to a Get contains it."""
        return self._gets[attribute](port, modifier)

    # Responses to Get.

    @staticmethod
    def _description(port: SimulatedPort, modifier: int) -> bytes:
        return port.node.description.encode("utf-8", "surrogateescape")[:64].ljust(64, b"\0")

    @staticmethod
    def _nodeInfo(port: SimulatedPort, modifier: int) -> bytes:
        return nodeInfoAt(port) + _AFTER_NODE_INFO

    @staticmethod
    def _switchInfo(port: SimulatedPort, modifier: int) -> bytes:
        _check(port.node.isSwitch, NO_ATTRIBUTE)
        return bytes(port.node.switchInfo) + _NOTHING[SwitchInfo.size :]

    @staticmethod
    def _guids(port: SimulatedPort, modifier: int) -> bytes:
        end = port.end
        _check(modifier * 8 < guidCap(end))
        return _stored(end, GUID_INFO, modifier, end.guid.raw + _NOTHING[8:] if modifier == 0 else _NOTHING)

    @staticmethod
    def _portInfo(port: SimulatedPort, modifier: int) -> bytes:
        return portInfoAt(_asked(port, modifier), port.number)

    @staticmethod
    def _pkeys(port: SimulatedPort, modifier: int) -> bytes:
        wanted, block = _partitioned(port, modifier)
        return pkeys.block(wanted, block)

    @staticmethod
    def _lanes(port: SimulatedPort, modifier: int) -> bytes:
        wanted, incoming = _laned(port, modifier)
        return _stored(wanted, LANES, incoming, _LANES) + _NOTHING[8:]

    @staticmethod
    def _arbitration(port: SimulatedPort, modifier: int) -> bytes:
        wanted, block = _arbitrated(port, modifier)
        return _stored(wanted, ARBITRATION, block, _LOW if block == 1 else _HIGH)

    @staticmethod
    def _forwarding(port: SimulatedPort, modifier: int) -> bytes:
        switch = port.node
        _check(switch.isSwitch, NO_ATTRIBUTE)
        _check(modifier * 64 < _linearCap(switch.switchInfo))
        block = tableOf(switch)[modifier * 64 : modifier * 64 + 64]
        return bytes(block) + _NO_PORT[len(block) :]

    @staticmethod
    def _multicast(port: SimulatedPort, modifier: int) -> bytes:
        switch = port.node
        _check(switch.isSwitch, NO_ATTRIBUTE)
        position, block = modifier >> 28, modifier & 0x1FF
        _check(block * 32 < MULTICAST_CAP and position * 16 <= switch.numPorts)
        return (switch.multicast or {}).get((position, block), _NOTHING)

    def _manager(self, port: SimulatedPort, modifier: int) -> bytes:
        return self._managerAt(port).answer().encode().ljust(64, b"\0")

    def _managerAt(self, port: SimulatedPort) -> SMInfoAgent:
        _check(port.end in self.managers, NO_ATTRIBUTE)
        return self.managers[port.end]

    @staticmethod
    def _extended(port: SimulatedPort, modifier: int) -> bytes:
        return _stored(_asked(port, modifier), *EXTENDED_PORT_INFO, _NOTHING)

    @staticmethod
    def _adaptive(attribute: int, port: SimulatedPort, modifier: int) -> bytes:
        known = port.node.adaptive
        if known is None:
            raise MADRefusal(NO_ATTRIBUTE)
        isForwarding = attribute == adaptive.AdaptiveForwardingTable.attributeID
        return known.get((attribute, modifier), _ALL_STATIC if isForwarding else _NOTHING)

    @staticmethod
    def _corrected(port: SimulatedPort, modifier: int) -> bytes:
        stored = _stored(_asked(port, modifier), *PORT_INFO_EXTENDED, b"")
        _check(stored, NO_ATTRIBUTE)
        return stored

    # Responses to Set, which contain the new value.

    def _setSwitchInfo(self, port: SimulatedPort, modifier: int, content: bytes) -> bytes:
        node = port.node
        _check(node.isSwitch, NO_ATTRIBUTE)
        now, requested = SwitchInfo.decode(node.switchInfo), SwitchInfo.decode(content)
        _check(requested.linearFDBTop < now.linearFDBCap)
        changes = {name: getattr(requested, name) for name in _SETTABLE}
        if requested.portStateChange:  # writing 1 clears it
            changes["portStateChange"] = False
        node.switchInfo[:] = now.replace(**changes).encode()
        return self._switchInfo(port, modifier)

    @staticmethod
    def _setGUIDs(port: SimulatedPort, modifier: int, content: bytes) -> bytes:
        end = port.end
        _check(modifier * 8 < guidCap(end))
        if modifier == 0:
            _own, *others = smp.GUIDInfo.decode(content).guids  # the first one is the port's GUID
            content = smp.GUIDInfo(guids=(end.guid, *others)).encode()
        return _store(end, GUID_INFO, modifier, content)

    def _setPortInfo(self, port: SimulatedPort, modifier: int, content: bytes) -> bytes:
        wanted = _asked(port, modifier)
        if setPortInfo(wanted, content):
            self._changed(wanted)
        for attachment in wanted.attachments:
            attachment.changed(bool(_reregisters(content)))
        return self._portInfo(port, modifier)

    @staticmethod
    def _setPKeys(port: SimulatedPort, modifier: int, content: bytes) -> bytes:
        wanted, block = _partitioned(port, modifier)
        return _store(wanted, PKEY_TABLE, block, content)

    @staticmethod
    def _setLanes(port: SimulatedPort, modifier: int, content: bytes) -> bytes:
        wanted, incoming = _laned(port, modifier)
        return _store(wanted, LANES, incoming, content[:8]) + _NOTHING[8:]

    @staticmethod
    def _setArbitration(port: SimulatedPort, modifier: int, content: bytes) -> bytes:
        wanted, block = _arbitrated(port, modifier)
        return _store(wanted, ARBITRATION, block, content)

    def _setForwarding(self, port: SimulatedPort, modifier: int, content: bytes) -> bytes:
        self._forwarding(port, modifier)  # refuses what a Get refuses
        table = tableOf(port.node)
        end = modifier * 64 + 64
        if len(table) < end:
            table.extend(b"\xff" * (end - len(table)))
        table[end - 64 : end] = content
        return content

    def _setMulticast(self, port: SimulatedPort, modifier: int, content: bytes) -> bytes:
        self._multicast(port, modifier)
        table = port.node.multicast = port.node.multicast or {}
        table[modifier >> 28, modifier & 0x1FF] = content
        return content

    def _control(self, port: SimulatedPort, modifier: int, content: bytes) -> bytes:
        manager = self._managerAt(port)
        status = manager.control(modifier, smp.SMInfo.decode(content))
        _check(not status, status)
        return manager.info().encode().ljust(64, b"\0")

    def _setExtended(self, port: SimulatedPort, modifier: int, content: bytes) -> bytes:
        now = smp.ExtendedPortInfo.decode(self._extended(port, modifier))
        if now.linkSpeedSupported:  # only linkSpeedEnabled can be set, if the first field requests it
            requested = smp.ExtendedPortInfo.decode(content)
            _check(not requested.linkSpeedEnabled & ~now.linkSpeedSupported)
            if requested.stateChangeEnable & 1:
                now = now.replace(linkSpeedEnabled=requested.linkSpeedEnabled)
            content = now.encode()
        return _store(_asked(port, modifier), *EXTENDED_PORT_INFO, content)


def _check(isPossible: object, status: int = MADStatus.INVALID_FIELD) -> None:
    """Refuse a request with this status unless the condition is true."""
    if not isPossible:
        raise MADRefusal(status)


def nodeInfoAt(port: SimulatedPort) -> bytes:
    """Return the NodeInfo of a port's node, with the fields of this port."""
    info = port.node.info
    return b"".join((info[_BEFORE_PORT], port.guid.raw, info[_BETWEEN], bytes((port.number,)), info[_VENDOR]))


def portInfoAt(port: SimulatedPort, number: int) -> bytes:
    """Return the PortInfo of a port, with this number as its LocalPortNum."""
    info = bytearray(port.info)
    _setNumber(info, number)
    return bytes(info)


def _asked(port: SimulatedPort, modifier: int) -> SimulatedPort:
    """Return the port that a modifier names; at a channel adapter, 0 is the receiving port."""
    node, number = port.node, modifier & _PORT_OF
    _check(number <= node.numPorts)
    return port if number == 0 and not node.isSwitch else node.ports[number]


def _partitioned(port: SimulatedPort, modifier: int) -> tuple[SimulatedPort, int]:
    """Return the port and the block of its P_KeyTable that a modifier names."""
    number, block = modifier >> 16, modifier & 0xFFFF
    if port.node.isSwitch:
        _check(number <= port.node.numPorts)
        port = port.node.ports[number]
    _check(block < pkeys.blocks(port))
    return port, block


def _laned(port: SimulatedPort, modifier: int) -> tuple[SimulatedPort, int]:
    """Return the output port and the number of the input port that a modifier for SLtoVLMapping names."""
    node = port.node
    if not node.isSwitch:
        return port, 0
    incoming, outgoing = modifier >> 8 & 0xFF, modifier & 0xFF
    _check(max(incoming, outgoing) <= node.numPorts)
    return node.ports[outgoing], incoming


def _arbitrated(port: SimulatedPort, modifier: int) -> tuple[SimulatedPort, int]:
    """Return the port and block (1 or 3: there are 8 entries) of a VLArbitrationTable's modifier."""
    node, block, number = port.node, modifier >> 16, modifier & 0xFF
    _check(block in (1, 3) and (not node.isSwitch or number <= node.numPorts))
    return (node.ports[number] if node.isSwitch else port), block


def _stored(port: SimulatedPort, attribute: int, block: int, default: bytes) -> bytes:
    """Return a block of a port's tables as it was set, or the default."""
    tables = port.tables
    return default if tables is None else tables.get((attribute, block), default)


def _store(port: SimulatedPort, attribute: int, block: int, content: bytes) -> bytes:
    port.tables = port.tables or {}
    port.tables[attribute, block] = content
    return content
