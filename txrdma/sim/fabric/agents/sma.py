"""
Subnet management agents of a simulated fabric, which answer SMPs by the attributes of its ports.

Follows InfiniBand Architecture vol. 1, 14.2 (SMPs), 14.2.4 (M_Keys) and 14.2.5 (attributes). One object
serves all nodes; it works on the encoded attributes of the port that received the request.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Final, Protocol

from txrdma.kit.rawfields import peek, poke, span
from txrdma.mad.layouts.attributes import Method
from txrdma.mad.layouts.messages import MADHeader, MADStatus
from txrdma.mad.layouts.smp import (
    ExtendedPortInfo,
    GUIDInfo,
    LedInfo,
    LinearForwardingTable,
    MulticastForwardingTable,
    NodeDescription,
    NodeInfo,
    PKeyTable,
    PortInfo,
    PortInfoExtended,
    RandomForwardingTable,
    SLtoVLMappingTable,
    SMInfo,
    SwitchInfo,
    VendorDiag,
    VLArbitrationTable,
    VLWeight,
)
from txrdma.mad.layouts.values import PortCapability
from txrdma.sim.fabric.agents.mkeys import ManagementKeys
from txrdma.sim.fabric.agents.portsetting import setPortInfo
from txrdma.sim.fabric.model import pkeys, rft
from txrdma.sim.fabric.model.forwarding import tableOf
from txrdma.sim.fabric.model.nodes import (
    EXTENDED_PORT_INFO,
    guidCap,
    MULTICAST_CAP,
    PORT_INFO_EXTENDED,
    SimulatedNode,
    SimulatedPort,
)

Result = tuple[int, bytes]
"""MAD status of an answer, and its encoded attribute."""


class SMInfoKeeper(Protocol):
    """A subnet manager, as the agent of its node uses it."""

    def info(self) -> SMInfo:
        """Return the SMInfo of the subnet manager: state, priority, activity count."""

    def answer(self) -> SMInfo:
        """Return the SMInfo in answer to a Get, and count the activity."""

    def control(self, command: int, info: SMInfo) -> int:
        """Perform a Set of SMInfo by another SM (IBA 14.4.1); return the MAD status."""


GET: Final = int(Method.GET)
SET: Final = int(Method.SET)
GUID_INFO: Final = GUIDInfo.attributeID
PORT_INFO: Final = PortInfo.attributeID
SM_INFO: Final = SMInfo.attributeID
PKEY_TABLE: Final = PKeyTable.attributeID
VENDOR_DIAG: Final = VendorDiag.attributeID
LED_INFO: Final = LedInfo.attributeID

_SETTABLE: Final = (
    *("linearFDBTop", "defaultPort", "defaultMulticastPrimaryPort", "defaultMulticastNotPrimaryPort"),
    *("lifeTimeValue", "optimizedSLtoVLMappingProgramming", "multicastFDBTop"),
)
"""Fields of SwitchInfo that a subnet manager can set."""

BAD_VALUE: Final = MADStatus.INVALID_FIELD
NO_ATTRIBUTE: Final = MADStatus.UNSUPPORTED_METHOD_ATTRIBUTE
_NO_METHOD: Final = MADStatus.UNSUPPORTED_METHOD
_NO_VERSION: Final = MADStatus.UNSUPPORTED_VERSION

_HEAD: Final = Struct(">2xBB12xH2xIQ")
_PORT_OF: Final = 0xFF
_NO_PORT: Final = b"\xff" * 64
_NOTHING: Final = bytes(64)
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
_LANES: Final = SLtoVLMappingTable(vls=(*range(15), 7)).encode()
_LOW: Final = VLArbitrationTable(
    entries=tuple(VLWeight(vl=vl, weight=4 if vl else 0) for vl in range(8)) + (VLWeight(),) * 24
).encode()
_HIGH: Final = VLArbitrationTable(
    entries=tuple(VLWeight(vl=vl, weight=0 if vl else 4) for vl in range(8)) + (VLWeight(),) * 24
).encode()


class SubnetManagementAgents:
    """
    Subnet management agents of all nodes of a simulated fabric.

    @ivar mkeys: M_Keys of all ports.
    @ivar managers: subnet managers by their ports, including standby ones.
    """

    def __init__(
        self,
        changed: Callable[[SimulatedPort], None],
        mkeys: ManagementKeys,
    ) -> None:
        """@param changed: called with each port whose state a Set has changed."""
        self._changed = changed
        self.mkeys = mkeys
        self.managers: dict[SimulatedPort, SMInfoKeeper] = {}
        self._gets: dict[int, Callable[[SimulatedNode, SimulatedPort, int], Result]] = {
            NodeDescription.attributeID: self._description,
            NodeInfo.attributeID: self._nodeInfo,
            SwitchInfo.attributeID: self._switchInfo,
            GUID_INFO: self._guids,
            PORT_INFO: self._portInfo,
            PKEY_TABLE: self._pkeys,
            SLtoVLMappingTable.attributeID: self._lanes,
            VLArbitrationTable.attributeID: self._arbitration,
            LinearForwardingTable.attributeID: self._forwarding,
            RandomForwardingTable.attributeID: self._random,
            MulticastForwardingTable.attributeID: self._multicast,
            SM_INFO: self._manager,
            VENDOR_DIAG: self._diagnosis,
            LED_INFO: self._led,
            ExtendedPortInfo.attributeID: self._extended,
            PortInfoExtended.attributeID: self._corrected,
        }
        self._sets: dict[int, Callable[[SimulatedNode, SimulatedPort, int, bytes], Result]] = {
            SwitchInfo.attributeID: self._setSwitchInfo,
            GUID_INFO: self._setGUIDs,
            PORT_INFO: self._setPortInfo,
            PKEY_TABLE: self._setPKeys,
            SLtoVLMappingTable.attributeID: self._setLanes,
            VLArbitrationTable.attributeID: self._setArbitration,
            LinearForwardingTable.attributeID: self._setForwarding,
            RandomForwardingTable.attributeID: self._setRandom,
            MulticastForwardingTable.attributeID: self._setMulticast,
            SM_INFO: self._control,
            LED_INFO: self._setLED,
            ExtendedPortInfo.attributeID: self._setExtended,
        }

    def answer(self, port: SimulatedPort, datagram: bytes) -> bytearray | None:
        """
        Answer a request that a port received.

        @return: the answer, without the fields of a directed route; None if there is no answer.
        """
        version, method, attribute, modifier, mkey = _HEAD.unpack_from(datagram)
        node = port.node
        end = node.ports[0] if node.isSwitch else port
        reply = bytearray(datagram)
        _setMethod(reply, Method.GET_RESP)
        if any(end.info[_MKEY]) and not self.mkeys.permits(end, method, mkey, datagram):
            return None
        if node.busyFor:
            node.busyFor -= 1
            status: int = MADStatus.BUSY
        elif version != 1:
            status = _NO_VERSION
        elif method == GET:
            get = self._gets.get(attribute)
            if get is None:
                status = NO_ATTRIBUTE
            else:
                status, content = get(node, port, modifier)
                if not status:
                    reply[_DATA] = content
                    if attribute == PORT_INFO and self.mkeys.hides(end, mkey):
                        reply[_DATA_MKEY] = _NOTHING[_MKEY]
        elif method == SET:
            set = self._sets.get(attribute)
            if set is None:
                status = NO_ATTRIBUTE
            else:
                status, content = set(node, port, modifier, datagram[_DATA])
                if not status:
                    reply[_DATA] = content
        elif method & _RESPONSE or method in (Method.TRAP, Method.TRAP_REPRESS):
            return None
        else:
            status = _NO_METHOD
        _setStatus(reply, status)
        return reply

    def attributeOf(self, port: SimulatedPort, attribute: int, modifier: int) -> bytes:
        """Return an encoded attribute of a port, as the answer to a Get contains it."""
        status, content = self._gets[attribute](port.node, port, modifier)
        assert not status
        return content

    # Responses to Get.

    @staticmethod
    def _description(node: SimulatedNode, port: SimulatedPort, modifier: int) -> Result:
        return 0, node.description.encode()[:64].ljust(64, b"\0")

    @staticmethod
    def _nodeInfo(node: SimulatedNode, port: SimulatedPort, modifier: int) -> Result:
        return 0, nodeInfoAt(port) + _AFTER_NODE_INFO

    @staticmethod
    def _switchInfo(node: SimulatedNode, port: SimulatedPort, modifier: int) -> Result:
        if not node.isSwitch:
            return NO_ATTRIBUTE, b""
        return 0, bytes(node.switchInfo) + _NOTHING[SwitchInfo.size :]

    @staticmethod
    def _guids(node: SimulatedNode, port: SimulatedPort, modifier: int) -> Result:
        end = port.end
        if modifier * 8 >= guidCap(end):
            return BAD_VALUE, b""
        return 0, _kept(end, GUID_INFO, modifier, end.guid.raw + _NOTHING[8:] if modifier == 0 else _NOTHING)

    @staticmethod
    def _portInfo(node: SimulatedNode, port: SimulatedPort, modifier: int) -> Result:
        wanted = _asked(node, port, modifier & _PORT_OF)
        if wanted is None:
            return BAD_VALUE, b""
        return 0, portInfoAt(wanted, port.number)

    @staticmethod
    def _pkeys(node: SimulatedNode, port: SimulatedPort, modifier: int) -> Result:
        wanted, block = port, modifier & 0xFFFF
        if node.isSwitch:
            number = modifier >> 16
            if number > node.numPorts:
                return BAD_VALUE, b""
            wanted = node.ports[number]
        return (0, pkeys.block(wanted, block)) if block < pkeys.blocks(wanted) else (BAD_VALUE, b"")

    @staticmethod
    def _lanes(node: SimulatedNode, port: SimulatedPort, modifier: int) -> Result:
        wanted, incoming = _laned(node, port, modifier)
        if wanted is None:
            return BAD_VALUE, b""
        return 0, _kept(wanted, 0x0017, incoming, _LANES) + _NOTHING[8:]

    @staticmethod
    def _arbitration(node: SimulatedNode, port: SimulatedPort, modifier: int) -> Result:
        wanted, block = _arbitrated(node, port, modifier)
        if wanted is None:
            return BAD_VALUE, b""
        return 0, _kept(wanted, 0x0018, block, _LOW if block == 1 else _HIGH)

    def _forwarding(self, node: SimulatedNode, port: SimulatedPort, modifier: int) -> Result:
        if not node.isSwitch or rft.isRandom(node):
            return NO_ATTRIBUTE, b""
        if modifier * 64 >= _linearCap(node.switchInfo):
            return BAD_VALUE, b""
        block = tableOf(node)[modifier * 64 : modifier * 64 + 64]
        return 0, bytes(block) + _NO_PORT[len(block) :]

    def _random(self, node: SimulatedNode, port: SimulatedPort, modifier: int) -> Result:
        if not node.isSwitch or not rft.isRandom(node):
            return NO_ATTRIBUTE, b""
        if modifier * rft.ENTRIES_PER_BLOCK >= rft.capacity(node):
            return BAD_VALUE, b""
        tableOf(node)
        return 0, rft.block(node, modifier)

    @staticmethod
    def _multicast(node: SimulatedNode, port: SimulatedPort, modifier: int) -> Result:
        if not node.isSwitch:
            return NO_ATTRIBUTE, b""
        position, block = modifier >> 28, modifier & 0x1FF
        if block * 32 >= MULTICAST_CAP or position * 16 > node.numPorts:
            return BAD_VALUE, b""
        return 0, (node.multicast or {}).get((position, block), _NOTHING)

    def _manager(self, node: SimulatedNode, port: SimulatedPort, modifier: int) -> Result:
        manager = self.managers.get(port.end)
        if manager is None:
            return NO_ATTRIBUTE, b""
        return 0, manager.answer().encode().ljust(64, b"\0")

    @staticmethod
    def _diagnosis(node: SimulatedNode, port: SimulatedPort, modifier: int) -> Result:
        stored = _kept(port.end, VENDOR_DIAG, modifier, _NOTHING if modifier == 0 else b"")
        return (0, stored) if stored else (BAD_VALUE, b"")

    @staticmethod
    def _led(node: SimulatedNode, port: SimulatedPort, modifier: int) -> Result:
        end = port.end
        if not end.capabilities & PortCapability.LED_INFO:
            return NO_ATTRIBUTE, b""
        return 0, _kept(end, LED_INFO, 0, _NOTHING)

    @staticmethod
    def _extended(node: SimulatedNode, port: SimulatedPort, modifier: int) -> Result:
        wanted = _asked(node, port, modifier & _PORT_OF)
        return (BAD_VALUE, b"") if wanted is None else (0, _kept(wanted, *EXTENDED_PORT_INFO, _NOTHING))

    @staticmethod
    def _corrected(node: SimulatedNode, port: SimulatedPort, modifier: int) -> Result:
        wanted = _asked(node, port, modifier & _PORT_OF)
        if wanted is None:
            return BAD_VALUE, b""
        stored = _kept(wanted, *PORT_INFO_EXTENDED, b"")
        return (0, stored) if stored else (NO_ATTRIBUTE, b"")

    # Responses to Set, which contain the new value.

    def _setSwitchInfo(
        self, node: SimulatedNode, port: SimulatedPort, modifier: int, content: bytes
    ) -> Result:
        if not node.isSwitch:
            return NO_ATTRIBUTE, b""
        now, requested = SwitchInfo.decode(node.switchInfo), SwitchInfo.decode(content)
        isRandom = rft.isRandom(node)
        if not isRandom and requested.linearFDBTop >= now.linearFDBCap:
            return BAD_VALUE, b""
        changes = {name: getattr(requested, name) for name in _SETTABLE}
        if isRandom:
            changes["linearFDBTop"] = 0
        if requested.portStateChange:  # writing 1 clears it
            changes["portStateChange"] = False
        node.switchInfo[:] = now.replace(**changes).encode()
        return self._switchInfo(node, port, modifier)

    def _setGUIDs(self, node: SimulatedNode, port: SimulatedPort, modifier: int, content: bytes) -> Result:
        end = port.end
        if modifier * 8 >= guidCap(end):
            return BAD_VALUE, b""
        if modifier == 0:
            _own, *others = GUIDInfo.decode(content).guids  # the first one is the port's GUID
            content = GUIDInfo(guids=(end.guid, *others)).encode()
        return _keep(end, GUID_INFO, modifier, content)

    def _setPortInfo(self, node: SimulatedNode, port: SimulatedPort, modifier: int, content: bytes) -> Result:
        wanted = _asked(node, port, modifier & _PORT_OF)
        if wanted is None:
            return BAD_VALUE, b""
        status, hasChanged = setPortInfo(wanted, content)
        if status:
            return status, b""
        if hasChanged:
            self._changed(wanted)
        for attachment in wanted.attachments:
            attachment.changed(bool(_reregisters(content)))
        return self._portInfo(node, port, modifier)

    def _setPKeys(self, node: SimulatedNode, port: SimulatedPort, modifier: int, content: bytes) -> Result:
        status, _ = self._pkeys(node, port, modifier)
        if status:
            return status, b""
        wanted = node.ports[modifier >> 16] if node.isSwitch else port
        return _keep(wanted, PKEY_TABLE, modifier & 0xFFFF, content)

    @staticmethod
    def _setLanes(node: SimulatedNode, port: SimulatedPort, modifier: int, content: bytes) -> Result:
        wanted, incoming = _laned(node, port, modifier)
        if wanted is None:
            return BAD_VALUE, b""
        _keep(wanted, 0x0017, incoming, content[:8])
        return 0, content[:8] + _NOTHING[8:]

    @staticmethod
    def _setArbitration(node: SimulatedNode, port: SimulatedPort, modifier: int, content: bytes) -> Result:
        wanted, block = _arbitrated(node, port, modifier)
        return (BAD_VALUE, b"") if wanted is None else _keep(wanted, 0x0018, block, content)

    def _setForwarding(
        self, node: SimulatedNode, port: SimulatedPort, modifier: int, content: bytes
    ) -> Result:
        status, _ = self._forwarding(node, port, modifier)
        if status:
            return status, b""
        table = tableOf(node)
        end = modifier * 64 + 64
        if len(table) < end:
            table.extend(b"\xff" * (end - len(table)))
        table[end - 64 : end] = content
        return 0, content

    def _setRandom(self, node: SimulatedNode, port: SimulatedPort, modifier: int, content: bytes) -> Result:
        status, _ = self._random(node, port, modifier)
        if not status:
            rft.setBlock(node, modifier, content)
        return status, content

    def _setMulticast(
        self, node: SimulatedNode, port: SimulatedPort, modifier: int, content: bytes
    ) -> Result:
        status, _ = self._multicast(node, port, modifier)
        if status:
            return status, b""
        if node.multicast is None:
            node.multicast = {}
        node.multicast[modifier >> 28, modifier & 0x1FF] = content
        return 0, content

    def _control(self, node: SimulatedNode, port: SimulatedPort, modifier: int, content: bytes) -> Result:
        manager = self.managers.get(port.end)
        if manager is None:
            return NO_ATTRIBUTE, b""
        status = manager.control(modifier, SMInfo.decode(content))
        return status, manager.info().encode().ljust(64, b"\0")

    def _setLED(self, node: SimulatedNode, port: SimulatedPort, modifier: int, content: bytes) -> Result:
        status, _ = self._led(node, port, modifier)
        return (status, b"") if status else _keep(port.end, LED_INFO, 0, content[:1] + _NOTHING[1:])

    def _setExtended(self, node: SimulatedNode, port: SimulatedPort, modifier: int, content: bytes) -> Result:
        wanted = _asked(node, port, modifier & _PORT_OF)
        if wanted is None:
            return BAD_VALUE, b""
        now = ExtendedPortInfo.decode(_kept(wanted, *EXTENDED_PORT_INFO, _NOTHING))
        if now.linkSpeedSupported:  # only linkSpeedEnabled can be set, if the first field requests it
            requested = ExtendedPortInfo.decode(content)
            if requested.linkSpeedEnabled & ~now.linkSpeedSupported:
                return BAD_VALUE, b""
            if requested.stateChangeEnable & 1:
                now = now.replace(linkSpeedEnabled=requested.linkSpeedEnabled)
            content = now.encode()
        return _keep(wanted, *EXTENDED_PORT_INFO, content)


def nodeInfoAt(port: SimulatedPort) -> bytes:
    """Return the NodeInfo of a port's node, with the fields of this port."""
    info = port.node.info
    return b"".join((info[_BEFORE_PORT], port.guid.raw, info[_BETWEEN], bytes((port.number,)), info[_VENDOR]))


def portInfoAt(port: SimulatedPort, number: int) -> bytes:
    """Return the PortInfo of a port, with this number as its LocalPortNum."""
    info = bytearray(port.info)
    _setNumber(info, number)
    return bytes(info)


def _asked(node: SimulatedNode, port: SimulatedPort, number: int) -> SimulatedPort | None:
    """Return the port that a modifier names; at a channel adapter, 0 is the receiving port."""
    if number > node.numPorts:
        return None
    return port if number == 0 and not node.isSwitch else node.ports[number]


def _laned(node: SimulatedNode, port: SimulatedPort, modifier: int) -> tuple[SimulatedPort | None, int]:
    """Return the output port and the number of the input port that a modifier for SLtoVLMapping names."""
    if not node.isSwitch:
        return port, 0
    incoming, outgoing = modifier >> 8 & 0xFF, modifier & 0xFF
    if max(incoming, outgoing) > node.numPorts:
        return None, 0
    return node.ports[outgoing], incoming


def _arbitrated(node: SimulatedNode, port: SimulatedPort, modifier: int) -> tuple[SimulatedPort | None, int]:
    """
    Return the port and the block of its VLArbitrationTable that a modifier names. Tables have 8 entries, so
    blocks 2 and 4 do not exist.
    """
    block, number = modifier >> 16, modifier & 0xFF
    if block not in (1, 3) or (node.isSwitch and number > node.numPorts):
        return None, 0
    return (node.ports[number] if node.isSwitch else port), block


def _kept(port: SimulatedPort, attribute: int, block: int, default: bytes) -> bytes:
    """Return a block of a port's tables as it was set, or the default."""
    tables = port.tables
    return default if tables is None else tables.get((attribute, block), default)


def _keep(port: SimulatedPort, attribute: int, block: int, content: bytes) -> Result:
    if port.tables is None:
        port.tables = {}
    port.tables[attribute, block] = content
    return 0, content
