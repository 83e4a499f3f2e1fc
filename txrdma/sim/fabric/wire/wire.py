"""
Transport of management datagrams through a simulated fabric, including nodes with faults, and their dispatch
to agents.

Follows InfiniBand Architecture vol. 1, 14.2.2 (directed routes) and 13.5 (dispatch to agents). A datagram's
route is computed when it is sent; the datagram or its answer is delivered later.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from random import Random
from typing import Final

from txrdma.iba.path import GMP_QKEY, IBPath, PERMISSIVE_LID
from txrdma.iba.types import DEFAULT_PKEY, LID, QPN
from txrdma.iba.verbs import Buffer, PortState
from txrdma.kit.rawfields import peek, poke, span
from txrdma.mad.layouts.messages import (
    ClassPortInfo,
    formatOf,
    MADHeader,
    MADHeaderDirected,
    Notice,
    RMPPHeader,
    RMPPType,
    SMPFormatDirected,
)
from txrdma.mad.layouts.smp import PortInfo, SwitchInfo
from txrdma.mad.layouts.traps import Trap
from txrdma.sim.fabric.agents.congestion import CONGESTION, CongestionAgents
from txrdma.sim.fabric.agents.pma import PerformanceManagementAgents
from txrdma.sim.fabric.agents.sma import SubnetManagementAgents
from txrdma.sim.fabric.agents.vendor import answerVendor, CLASSES
from txrdma.sim.fabric.model.forwarding import outOf
from txrdma.sim.fabric.model.nodes import PortAttachment, SimulatedNode, SimulatedPort
from txrdma.sim.fabric.model.pkeys import keysOf, sharesPartition
from txrdma.sim.fabric.wire.madport import SimulatedEnvelope, SimulatedMADPort
from txrdma.sim.fabric.wire.traps import badKey, trapDatagram

MOST_HOPS: Final = 63
_DIRECTED_PATH: Final = IBPath(slid=PERMISSIVE_LID, dlid=PERMISSIVE_LID)
"""Path of a received directed-route SMP: permissive LIDs, as the route is in the SMP itself."""

_LID_HOPS: Final = 64
_SUBN: Final = 0x01
_DIRECTED: Final = 0x81
_PERFORMANCE: Final = 0x04
_GET: Final = 0x01
_SET: Final = 0x02
_TRAP: Final = 0x05
_TRAP_REPRESS: Final = 0x07
_RESPONSE: Final = 0x80
_BUSY: Final = 0x01
_REDIRECT: Final = 0x02


_Counter = tuple[Callable[[Buffer], int], Callable[[bytearray, int], None]]
_PKEY_VIOLATIONS: Final = (peek(PortInfo, "pkeyViolations"), poke(PortInfo, "pkeyViolations"))
_QKEY_VIOLATIONS: Final = (peek(PortInfo, "qkeyViolations"), poke(PortInfo, "qkeyViolations"))
_top = peek(SwitchInfo, "linearFDBTop")
_class = peek(MADHeader, "managementClass")
_method, _setMethod = peek(MADHeader, "method"), poke(MADHeader, "method")
_setStatus = poke(MADHeader, "status")
_returning, _setReturning = peek(MADHeaderDirected, "returning"), poke(MADHeaderDirected, "returning")
_hopPointer, _setHopPointer = peek(MADHeaderDirected, "hopPointer"), poke(MADHeaderDirected, "hopPointer")
_hopCount = peek(MADHeaderDirected, "hopCount")
_drSLID, _drDLID = peek(SMPFormatDirected, "drSLID"), peek(SMPFormatDirected, "drDLID")
_INITIAL: Final = span(SMPFormatDirected, "initialPath").start
_RETURN: Final = span(SMPFormatDirected, "returnPath").start


class Wire:
    """
    Links and switches of a fabric, which carry datagrams, and the agents of its nodes.

    @ivar datagrams: number of datagrams sent by attached ports.
    @ivar lost: number of datagrams and answers that were lost at random.
    @ivar latencySeconds: time from a request to its answer; can be changed at any time.
    @ivar jitterSeconds: maximum of the random addition to the latency; can be changed at any time.
    @ivar loss: probability that a datagram is lost; can be changed at any time.
    """

    def __init__(
        self,
        seconds: Callable[[], float],
        later: Callable[..., None],
        sma: SubnetManagementAgents,
        seed: int,
    ) -> None:
        """
        @param seconds: returns the current time.
        @param later: schedules a call after some seconds.
        @param seed: seed of losses and jitter.
        """
        self.datagrams = self.lost = 0
        self.latencySeconds = self.jitterSeconds = self.loss = 0.0
        self._sma = sma
        self._pma = PerformanceManagementAgents(seconds)
        self._congestion = CongestionAgents(seconds)
        self._later = later
        self._random = Random(seed)
        self._traps = count()

    def sent(self, sender: SimulatedMADPort, datagram: bytes, path: IBPath) -> None:
        """Carry a datagram that an attached port sends."""
        self.datagrams += 1
        if self.loss and self._isLost():
            return
        if _class(datagram) == _DIRECTED:
            method = _method(datagram)
            if method & _RESPONSE or method == _TRAP_REPRESS:
                self._directedAnswer(sender, datagram, path)
            else:
                self._directedRequest(sender, datagram, path)
            return
        there = self.walk(sender.port, path.dlid)
        if there is not None:
            self._arrived(sender, there, datagram, path)

    def _isLost(self) -> bool:
        if self._random.random() < self.loss:
            self.lost += 1
            return True
        return False

    def _directedRequest(self, sender: SimulatedMADPort, datagram: bytes, path: IBPath) -> None:
        """Carry a directed-route request hop by hop, over links that are up (IBA 14.2.2)."""
        hops = _hopCount(datagram)
        if _hopPointer(datagram) or hops > MOST_HOPS or _returning(datagram):
            return  # it is not at the beginning of its route
        port: SimulatedPort | None = sender.port
        if _drSLID(datagram) != PERMISSIVE_LID:  # first by LID, to where the directed part begins
            port = self.walk(sender.port, path.dlid)
            if port is None:
                return
        assert port is not None
        node = port.node
        back = bytearray(hops + 1)
        for hop in range(1, hops + 1):
            out = datagram[_INITIAL + hop]
            # Hosts do not forward: a route leaves one only on its first hop, by the port that sends.
            if not node.isSwitch and (hop > 1 or out != port.number):
                return
            if not 0 < out < len(node.ports):
                return
            port = node.ports[out].neighbor
            if port is None:
                return
            node = port.node
            if node.isDead:
                return
            # The return path has the port by which each hop entered (IBA 14.2.2).
            back[hop] = port.number
        dlid = _drDLID(datagram)
        if dlid != PERMISSIVE_LID:
            port = self.walk(port, dlid)
            if port is None:
                return
            node = port.node
        if node.isDead:
            return
        end = node.ports[0] if node.isSwitch else port
        if end.attachments:
            server = servedBy(end, _DIRECTED, _method(datagram))
            # A subnet manager that queries its own port is answered by the agent of the node.
            if server is not None and (server is not sender or end not in self._sma.managers):
                self._askDirected(server, datagram, back)
                return
        reply = self._sma.answer(port, datagram)
        if reply is None:
            return
        _setReturning(reply, True)
        _setHopPointer(reply, 0)
        reply[_RETURN : _RETURN + 1 + hops] = back
        self._answer(node, sender, bytes(reply), path)

    def _askDirected(self, server: PortAttachment, datagram: bytes, back: bytearray) -> None:
        """Deliver a directed-route request to an attached server, instead of the node's own agent."""
        request = bytearray(datagram)
        _setHopPointer(request, len(back))
        request[_RETURN : _RETURN + len(back)] = back
        self._later(self._halfway(), server.deliver, bytes(request), _DIRECTED_PATH)

    def _directedAnswer(self, sender: SimulatedMADPort, datagram: bytes, path: IBPath) -> None:
        """Return a response on a directed route, hop by hop, through the entry ports of the request."""
        hops = _hopCount(datagram)
        if not _returning(datagram) or hops > MOST_HOPS or _hopPointer(datagram) != hops + 1:
            return
        port: SimulatedPort | None = sender.port
        if _drDLID(datagram) != PERMISSIVE_LID:  # first by LID, to where the directed part ends
            port = self.walk(sender.port, path.dlid)
        for hop in range(hops, 0, -1):
            port = None if port is None else _leftBy(port, datagram[_RETURN + hop], isFirst=hop == hops)
        slid = _drSLID(datagram)
        if port is not None and slid != PERMISSIVE_LID:
            port = self.walk(port, slid)
        if port is None or port.node.isDead:
            return
        reply = bytearray(datagram)
        _setHopPointer(reply, 0)
        for attachment in port.end.attachments:
            self._later(self._halfway(), attachment.deliver, bytes(reply), _DIRECTED_PATH)

    def walk(self, start: SimulatedPort, dlid: int) -> SimulatedPort | None:
        """Return the port at which a datagram for a LID arrives, by forwarding tables; None if none."""
        port = start
        node = port.node
        for hop in range(_LID_HOPS):
            if node.isSwitch:
                own = node.ports[0]
                if own.owns(dlid):
                    return port
                out = outOf(node, dlid) if dlid <= _top(node.switchInfo) else None
                if out is None:
                    return None
                port = out
            elif port.owns(dlid):
                return port
            elif hop:
                return None
            there = port.neighbor
            if there is None or port.state != PortState.ACTIVE:
                return None
            port = there
            node = port.node
        return None

    def _arrived(self, sender: SimulatedMADPort, port: SimulatedPort, datagram: bytes, path: IBPath) -> None:
        """Deliver a datagram that was routed by LID, to an attached port or the node's own agent."""
        node = port.node
        end = node.ports[0] if node.isSwitch else port
        managementClass, method = _class(datagram), _method(datagram)
        if node.isDead:
            return
        isSMP = managementClass == _SUBN
        came = SimulatedEnvelope(path, _sourceOf(sender.port, path), isSMP)
        if not isSMP and not self._isAdmitted(end, came):
            return
        # All receive these, since each knows its own transactions; requests go to the one that serves them.
        if method & _RESPONSE or method == _TRAP_REPRESS or _isAboutRMPP(datagram):
            for attachment in end.attachments:
                self._later(self._halfway(), attachment.deliver, datagram, came)
            return
        if not isSMP and (node.busyFor or node.redirects):
            excuse = _excuse(node, datagram)
            if excuse is not None:
                self._answer(node, sender, bytes(excuse), came.back())
                return
        if end.attachments:
            server = servedBy(end, managementClass, method)
            if server is not None:
                delay = self._halfway() + node.delaySeconds
                self._later(delay, server.deliver, datagram, came)
                return
        # The request is executed also if no route leads back, so that only the answer is lost.
        reply = self._byItself(port, datagram)
        if reply is not None and self.walk(end, path.slid or sender.port.lid) is not None:
            self._answer(node, sender, bytes(reply), came.back())

    def _isAdmitted(self, end: SimulatedPort, came: SimulatedEnvelope) -> bool:
        """Return whether P_Key and Q_Key of a datagram are right; count a wrong key, and send a trap."""
        sent = came.sent
        if end.tables is not None or sent.pkey != DEFAULT_PKEY:
            if not any(sharesPartition(key, sent.pkey) for key in keysOf(end)):
                self._denied(end, _PKEY_VIOLATIONS, Trap.BAD_PKEY, came, sent.pkey)
                return False
        if sent.qkey and sent.qkey != GMP_QKEY:
            self._denied(end, _QKEY_VIOLATIONS, Trap.BAD_QKEY, came, sent.qkey)
            return False
        return True

    def _denied(
        self, end: SimulatedPort, counter: _Counter, trap: Trap, came: SimulatedEnvelope, key: int
    ) -> None:
        """Count a wrong key, and send the trap for it."""
        read, write = counter
        write(end.info, min(read(end.info) + 1, 0xFFFF))
        self.trap(end, badKey(trap, end.lid, end.node.kind, came.path(), key))

    def _byItself(self, port: SimulatedPort, datagram: bytes) -> bytearray | None:
        """Return the answer of a node's agents; None if there is none."""
        if _class(datagram) == _SUBN:
            return self._sma.answer(port, datagram)
        if _class(datagram) in CLASSES:
            return answerVendor(port, datagram)
        if _class(datagram) == CONGESTION:
            return self._congestion.answer(port, datagram)
        isAnswered = _class(datagram) == _PERFORMANCE and port.node.hasCounters
        return self._pma.answer(port, datagram) if isAnswered else None

    def _answer(self, node: SimulatedNode, to: SimulatedMADPort, reply: bytes, envelope: object) -> None:
        if self.loss and self._isLost():
            return
        delay = self.latencySeconds + node.delaySeconds
        if self.jitterSeconds:
            delay += self._random.random() * self.jitterSeconds
        self._later(delay, to.deliver, reply, envelope)

    def _halfway(self) -> float:
        """Return the latency of one direction in seconds, with jitter."""
        jitter = self.jitterSeconds and self._random.random() * self.jitterSeconds
        return (self.latencySeconds + jitter) / 2

    # Traps of nodes.

    def trap(self, end: SimulatedPort, notice: Notice) -> None:
        """Send a trap to the subnet manager, if one is attached at its LID (IBA 13.4.9)."""
        smLID = end.smLID
        if not smLID or end.node.isDead:
            return
        there = self.walk(end, smLID)
        if there is None:
            return
        server = servedBy(there.end, _SUBN, _TRAP)
        if server is not None:
            came = IBPath(slid=end.lid, dlid=smLID)
            datagram = trapDatagram(notice, next(self._traps))
            self._later(self._halfway(), server.deliver, datagram, came)


def _leftBy(port: SimulatedPort, out: int, isFirst: bool) -> SimulatedPort | None:
    """Return the peer of port C{out} of C{port}'s node; packets leave a host only on their first hop."""
    node = port.node
    if node.isDead or not 0 < out < len(node.ports):
        return None
    if not node.isSwitch and not (isFirst and out == port.number):
        return None
    return node.ports[out].neighbor


def _sourceOf(port: SimulatedPort, path: IBPath) -> LID:
    """Return the source LID of a datagram: that of the path if the port has it, else the port's LID."""
    return path.slid if path.slid and port.end.owns(path.slid) else port.lid


def servedBy(end: SimulatedPort, managementClass: int, method: int) -> PortAttachment | None:
    for attachment in end.attachments:
        if attachment.serves(managementClass, method):
            return attachment
    return None


_RMPP: Final = frozenset((0x03, 0x06, 0x10, 0x12, *range(0x30, 0x50)))


def _isAboutRMPP(datagram: bytes) -> bool:
    """Return whether a datagram is an ACK, a STOP or an ABORT of RMPP, which is not a request."""
    if _class(datagram) not in _RMPP:
        return False
    header = RMPPHeader.decode(datagram, MADHeader.size)
    return header.version == 1 and header.type > RMPPType.DATA


def _excuse(node: SimulatedNode, datagram: bytes) -> bytearray | None:
    """Return the answer of a node that is busy (BUSY) or redirects (REDIRECT); None for other nodes."""
    if node.busyFor:
        node.busyFor -= 1
        return _statusReply(datagram, _BUSY)
    lid = (node.redirects or {}).get(_class(datagram))
    return None if lid is None else _redirecting(datagram, lid)


def _statusReply(datagram: bytes, status: int) -> bytearray:
    reply = bytearray(datagram)
    method = _method(datagram)
    _setMethod(reply, _RESPONSE | (_GET if method == _SET else method))
    _setStatus(reply, status)
    return reply


def _redirecting(datagram: bytes, lid: LID) -> bytearray:
    """Return a redirect answer with the LID of another node (IBA 13.4.8.1)."""
    reply = _statusReply(datagram, _REDIRECT)
    where = ClassPortInfo(
        baseVersion=1,
        classVersion=datagram[2],
        redirectLID=lid,
        redirectPKey=0xFFFF,
        redirectQPN=QPN(1),
        redirectQKey=GMP_QKEY,
    )
    where.encodeInto(reply, formatOf(_class(datagram)).dataOffset)
    return reply
