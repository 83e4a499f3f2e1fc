"""An agent of a simulated fabric that reports an endless number of switches behind a port."""

from __future__ import annotations

from hashlib import blake2b
from itertools import count

from txrdma.iba.path import IBDRPath, IBPath
from txrdma.iba.types import GUID, LID
from txrdma.iba.verbs import NodeType, PhysicalState, PortState
from txrdma.kit.rawfields import peek, poke
from txrdma.mad.layouts.attributes import Method
from txrdma.mad.layouts.messages import MADHeader, MADStatus
from txrdma.mad.layouts.smp import NodeDescription, NodeInfo, PortInfo, SwitchInfo
from txrdma.sim.fabric import SimulatedFabric
from txrdma.sim.fabric.wire.madport import SimulatedMADPort

_INITIAL = 128
_RETURN = 192
_DATA = slice(64, 128)
_HOPS = 7
_DIRECTED = 0x81
_class, _attribute = peek(MADHeader, "managementClass"), peek(MADHeader, "attributeID")
_modifier = peek(MADHeader, "attributeModifier")
_setMethod, _setStatus = poke(MADHeader, "method"), poke(MADHeader, "status")


class Mirage:
    """
    A faulty agent behind some ports: it answers each directed route through one of them as another switch,
    all of whose ports are up.

    @ivar asked: number of invented answers.
    """

    def __init__(
        self,
        fabric: SimulatedFabric,
        *places: tuple[int, ...],
        ports: int = 254,
        isFresh: bool = False,
    ) -> None:
        """
        @param places: directed routes through the ports.
        @param ports: number of ports that each switch reports.
        @param isFresh: each NodeInfo has another GUID, even on a repeated route.
        """
        self.asked = 0
        self.isOn = True
        self._places = places
        self._ports = ports
        self._isFresh = isFresh
        self._numbers = count()
        self._later = fabric.wire._later
        self._sent = fabric.wire.sent
        fabric.wire.sent = self.sent  # type: ignore[method-assign]
        for node in fabric.nodes.values():
            for attachment in (each for port in node.ports for each in port.attachments):
                if isinstance(attachment, SimulatedMADPort):
                    attachment._sent = self.sent

    def sent(self, sender: SimulatedMADPort, datagram: bytes, path: IBPath) -> None:
        route = tuple(datagram[_INITIAL + 1 : _INITIAL + 1 + datagram[_HOPS]])
        isHere = any(route[: len(place)] == place for place in self._places)
        if not (self.isOn and isHere and _class(datagram) == _DIRECTED):
            self._sent(sender, datagram, path)
            return
        self.asked += 1
        reply = bytearray(datagram)
        _setMethod(reply, Method.GET_RESP)
        content = self._content(_attribute(datagram), _modifier(datagram), route)
        if content is None:
            _setStatus(reply, 0x8000 | MADStatus.UNSUPPORTED_METHOD_ATTRIBUTE)
        else:
            _setStatus(reply, 0x8000)
            reply[_DATA] = content.ljust(64, b"\0")
        reply[6] = 0
        reply[_RETURN + 1 : _RETURN + 1 + len(route)] = bytes([1] * len(route))
        self._later(0.001, sender.deliver, bytes(reply), IBDRPath())

    def _content(self, attribute: int, modifier: int, route: tuple[int, ...]) -> bytes | None:
        if attribute == NodeInfo.attributeID:
            fresh = f" {next(self._numbers)}" if self._isFresh else ""
            guid = GUID(blake2b(f"{route}{fresh}".encode(), digest_size=8).digest())
            return NodeInfo(
                baseVersion=1,
                classVersion=1,
                nodeType=NodeType.SWITCH,
                numPorts=self._ports,
                systemImageGUID=guid,
                nodeGUID=guid,
                portGUID=guid,
                localPortNum=1,
            ).encode()
        if attribute == PortInfo.attributeID:
            return PortInfo(
                portState=PortState.ACTIVE,
                portPhysicalState=PhysicalState.LINK_UP,
                lid=LID(0),
                localPortNum=1,
                linkWidthActive=2,
                linkSpeedActive=1,
            ).encode()
        if attribute == NodeDescription.attributeID:
            return b"mirage"
        if attribute == SwitchInfo.attributeID:
            return SwitchInfo(linearFDBCap=49152).encode()
        return None
