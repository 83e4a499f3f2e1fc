"""
A simulated InfiniBand subnet: nodes that answer management datagrams as real ones do.

Nothing is sent anywhere: a datagram's way is walked when it is sent, and what comes of it arrives later, by a
C{Clock} or a reactor. What cannot be reached, and what is lost, is silence, as in a real subnet.
"""

from __future__ import annotations

from itertools import count
from random import Random
from typing import Final

from twisted.internet.interfaces import IDelayedCall, IReactorTime

from txrdma.iba.path import GMP_QKEY, IBDRPath, IBPath
from txrdma.iba.types import DEFAULT_PKEY, GID, GUID, LID, QPN
from txrdma.iba.verbs import PhysicalState, PortState
from txrdma.mad.messages import ClassPortInfo, formatOf, Notice
from txrdma.sim.counters import Counters
from txrdma.sim.madport import Envelope, SimulatedMADPort
from txrdma.sim.manager import GID_PREFIX, SubnetManager
from txrdma.sim.netfile import Net
from txrdma.sim.nodes import bringDown, bringUp, buildNodes, endPorts, SimulatedNode, SimulatedPort
from txrdma.sim.pma import PerformanceManagementAgents
from txrdma.sim.sa import SubnetAdministration
from txrdma.sim.sma import sharesPartition, SubnetManagementAgents
from txrdma.sim.timetable import Timetable
from txrdma.sim.traps import badKey, badMKey, linkChanged, trapDatagram
from txrdma.sim.vendor import answerVendor, CLASSES

RESWEEP_SECONDS: Final = 1.0
"""How long after a change the subnet's manager looks anew."""

MOST_HOPS: Final = 63
_LID_HOPS: Final = 64
_PERMISSIVE: Final = 0xFFFF
_SUBN: Final = 0x01
_DIRECTED: Final = 0x81
_PERFORMANCE: Final = 0x04
_GET: Final = 0x01
_SET: Final = 0x02
_TRAP: Final = 0x05
_TRAP_REPRESS: Final = 0x07
_RESPONSE: Final = 0x80
_BUSY: Final = 0x01
_IN_SERVICE: Final = 64
_OUT_OF_SERVICE: Final = 65
_REDIRECT: Final = 0x02


class SimulatedFabric:
    """
    A subnet.

    @ivar nodes: by their identifiers in the net file.
    @ivar manager: of the subnet; None in one that nobody manages. C{administration} is its other half.
    @ivar timetable: what is on its way.
    @ivar datagrams: how many datagrams were sent, C{lost} how many of these the fabric has lost by chance.
    """

    def __init__(
        self,
        clock: IReactorTime,
        net: Net,
        *,
        latencySeconds: float = 0.0,
        loss: float = 0.0,
        seed: int = 0,
        isManaged: bool = True,
        managerAt: str = "",
        lmc: int = 0,
        resweepSeconds: float | None = RESWEEP_SECONDS,
    ) -> None:
        """
        @param latencySeconds: from a request to its answer.
        @param loss: how probably a datagram is lost on its way, each direction by itself.
        @param seed: of what is lost, and of nothing else.
        @param isManaged: without a manager there are no LIDs, and nothing but directed routes works.
        @param managerAt: the node with the manager; the last host unless said.
        @param resweepSeconds: how long after a change the manager looks anew; None is never.
        """
        self.clock = clock
        self.nodes = buildNodes(net)
        self.latencySeconds = latencySeconds
        self.loss = loss
        self.datagrams = self.lost = 0
        self._random = Random(seed)
        self._seconds = clock.seconds
        self.timetable = Timetable(clock)
        self._later = self.timetable.later
        self._traps = count()
        self._resweepSeconds = resweepSeconds
        self._resweep: IDelayedCall | None = None
        self._directed: dict[tuple[SimulatedMADPort, bytes], tuple[SimulatedMADPort, bytes]] = {}
        self.sma = SubnetManagementAgents(self.linearOf, self._changed, self._violated)
        self.pma = PerformanceManagementAgents(clock.seconds)
        self.manager: SubnetManager | None = None
        self.administration: SubnetAdministration | None = None
        if isManaged:
            self.manage(managerAt, lmc)

    def __repr__(self) -> str:
        return f"<SimulatedFabric of {len(self.nodes)} nodes>"

    # Parts, by name.

    def node(self, name: str) -> SimulatedNode:
        """
        A node by its identifier, description or GUID.

        @raise ValueError: there is none.
        """
        found = self.nodes.get(name)
        if found is not None:
            return found
        for node in self.nodes.values():
            if node.description == name or name.lower() == f"{int(node.guid):#018x}":
                return node
        raise ValueError(f"there is no node {name!r} in this fabric")

    def port(self, name: str, number: int | None = None) -> SimulatedPort:
        """
        A port of a node; without a number its first one with a link, of a switch port 0.

        @raise ValueError: there is no such node or port.
        """
        node = self.node(name)
        if number is None:
            ends = tuple(endPorts(node))
            return next((port for port in ends if port.way is not None), ends[0])
        if not (0 if node.isSwitch else 1) <= number <= node.numPorts:
            raise ValueError(f"{name!r} has no port {number}")
        return node.ports[number]

    def portOf(self, lid: int) -> SimulatedPort | None:
        """Who has a LID, by what ports say themselves."""
        if self.manager is not None:
            for lmc in range(8):
                port = self.manager.ports.get(lid & ~((1 << lmc) - 1))
                if port is not None and port.lid <= lid < port.lid + (1 << port.lmc):
                    return port
        for node in self.nodes.values():
            for port in endPorts(node):
                if port.lid and port.lid <= lid < port.lid + (1 << port.lmc):
                    return port
        return None

    def attach(self, name: str = "", number: int | None = None) -> SimulatedMADPort:
        """
        A management port at a port of the fabric; at the first host's unless said.

        @raise ValueError: there is no such port.
        """
        if not name:
            hosts = (node.identifier for node in self.nodes.values() if not node.isSwitch)
            name = next(hosts, "") or next(iter(self.nodes))
        port = self.port(name, number)
        return self.attachTo(port.end, "" if number is None else f"sim:node={name}/{number}")

    def attachTo(self, port: SimulatedPort, name: str = "") -> SimulatedMADPort:
        """The same, of a port that is known."""
        return SimulatedMADPort(self, port, name)

    # The manager.

    def manage(self, at: str = "", lmc: int = 0) -> SubnetManager:
        """Have the subnet managed, from a node's first port; from the last host's unless said."""
        if not at:
            hosts = [
                node.identifier
                for node in self.nodes.values()
                if not node.isSwitch and any(port.way is not None for port in node.external)
            ]
            at = hosts[-1] if hosts else next(iter(self.nodes))
        self.manager = SubnetManager(self.nodes, self.port(at).end, lmc)
        self.sweep()
        if self.administration is not None:
            self.administration.close()
        self.administration = SubnetAdministration(self, self.manager.port)
        return self.manager

    def sweep(self) -> None:
        """Let the manager look now."""
        if self._resweep is not None and self._resweep.active():
            self._resweep.cancel()
        self._resweep = None
        manager = self.manager
        if manager is None or manager.port.node.isDead:
            return
        before = set(manager.ports.values())
        manager.sweep()
        self.sma.smPort = manager.port
        self.sma.smInfo = manager.info().encode()
        after = set(manager.ports.values())
        if self.administration is not None:
            for trap, ports in ((_IN_SERVICE, after - before), (_OUT_OF_SERVICE, before - after)):
                for port in sorted(ports, key=lambda port: port.lid):
                    self.administration.notice(trap, GID.fromParts(GID_PREFIX, port.guid))

    def linearOf(self, switch: SimulatedNode) -> bytearray:
        """The forwarding table of a switch, made when somebody looks at it first."""
        if switch.linear is None:
            switch.linear = bytearray() if self.manager is None else self.manager.table(switch)
        return switch.linear

    def close(self) -> None:
        """Nothing happens any more."""
        if self._resweep is not None and self._resweep.active():
            self._resweep.cancel()
        self._resweep = None
        self.timetable.clear()
        if self.administration is not None:
            self.administration.close()

    # Faults.

    def cut(self, name: str, number: int = 1) -> None:
        """Take the cable of a port away."""
        port = self.port(name, number)
        for end in (port, port.peer):
            if end is not None:
                end.isCut = True
        if port.way is not None:
            bringDown(port)
            self._changed(port)

    def heal(self, name: str, number: int = 1) -> None:
        """Put it back."""
        port = self.port(name, number)
        for end in (port, port.peer):
            if end is not None:
                end.isCut = False
        if bringUp(port):
            self._changed(port)

    def silence(self, name: str) -> None:
        """Let a node hang: its links stay up, but it answers and forwards nothing of management."""
        self.node(name).isDead = True

    def revive(self, name: str) -> None:
        """Let it answer again, and be a node without delays and excuses."""
        node = self.node(name)
        node.isDead, node.delaySeconds, node.busyFor, node.redirects = False, 0.0, 0, None

    def slow(self, name: str, seconds: float) -> None:
        """Let a node take this much longer."""
        self.node(name).delaySeconds = seconds

    def busy(self, name: str, requests: int) -> None:
        """Let a node answer BUSY to so many requests."""
        self.node(name).busyFor = requests

    def redirect(self, name: str, managementClass: int, to: str) -> None:
        """Let a node send those who ask this class of it, to another one."""
        node = self.node(name)
        node.redirects = {**(node.redirects or {}), managementClass: self.port(to).end.lid}

    def duplicate(self, name: str, of: str) -> None:
        """Give a node the GUID of another one."""
        self.node(name).call(self.node(of).guid)

    def rename(self, name: str, guid: GUID) -> None:
        """Give a node a GUID."""
        self.node(name).call(guid)

    # Counters.

    def counters(self, name: str, number: int = 1) -> Counters:
        """What a port has counted: to be set, and to grow."""
        return self.port(name, number).count()

    def setCounters(self, name: str, number: int, **values: int) -> None:
        """Let counters of a port stand at these values."""
        self.counters(name, number).set(self._seconds(), **values)

    def growCounters(self, name: str, number: int, **rates: float) -> None:
        """Let counters of a port go on by so much each second: errors, say."""
        self.counters(name, number).grow(self._seconds(), **rates)

    def traffic(self, wordsPerSecond: float, packetsPerSecond: float) -> None:
        """Let traffic pass by all links, the same in both directions, but not the same on each."""
        now = self._seconds()
        random = Random(0)
        for node in self.nodes.values():
            for port in node.external:
                peer = port.way
                if peer is None or (peer.node.identifier, peer.number) < (node.identifier, port.number):
                    continue
                share, back = random.random() * 2, random.random() * 2
                for end, out, into in ((port, share, back), (peer, back, share)):
                    end.count().grow(
                        now,
                        portXmitData=wordsPerSecond * out,
                        portXmitPkts=packetsPerSecond * out,
                        portUnicastXmitPkts=packetsPerSecond * out,
                        portRcvData=wordsPerSecond * into,
                        portRcvPkts=packetsPerSecond * into,
                        portUnicastRcvPkts=packetsPerSecond * into,
                    )

    # Datagrams.

    def sent(self, sender: SimulatedMADPort, datagram: bytes, path: IBPath) -> None:
        """A datagram enters the fabric."""
        self.datagrams += 1
        if self.loss and self._isLost():
            return
        if datagram[1] == _DIRECTED:
            if datagram[3] & _RESPONSE or datagram[3] == _TRAP_REPRESS:
                self._directedAnswer(sender, datagram)
            else:
                self._directedRequest(sender, datagram, path)
            return
        there = self._walk(sender.port, path.dlid)
        if there is not None:
            self._arrived(sender, there, datagram, path)

    def _isLost(self) -> bool:
        if self._random.random() < self.loss:
            self.lost += 1
            return True
        return False

    def _directedRequest(self, sender: SimulatedMADPort, datagram: bytes, path: IBPath) -> None:
        """A directed route: hop by hop, by links that are up (IBA 14.2.2)."""
        hops = datagram[7]
        if datagram[6] or hops > MOST_HOPS or datagram[4] & 0x80:
            return
        port: SimulatedPort | None = sender.port
        if datagram[32:34] != b"\xff\xff":  # first by LID, to where the directed part begins
            port = self._walk(sender.port, path.dlid)
            if port is None:
                return
        assert port is not None
        node = port.node
        back = bytearray(hops + 1)
        for hop in range(1, hops + 1):
            out = datagram[128 + hop]
            if not node.isSwitch and (hop > 1 or out != port.number):
                return
            if not 0 < out < len(node.ports):
                return
            port = node.ports[out].way
            if port is None:
                return
            node = port.node
            if node.isDead:
                return
            back[hop] = port.number
        if datagram[34:36] != b"\xff\xff":
            port = self._walk(port, int.from_bytes(datagram[34:36], "big"))
            if port is None:
                return
            node = port.node
        if node.isDead:
            return
        end = node.ports[0] if node.isSwitch else port
        if end.attachments:
            server = _servedBy(end, _DIRECTED, datagram[3])
            if server is not None and (server is not sender or end is not self.sma.smPort):
                self._askDirected(sender, server, datagram, back)
                return
        reply = self.sma.answer(port, datagram)
        if reply is None:
            return
        reply[4] |= 0x80
        reply[6] = 0
        reply[192 : 193 + hops] = back
        self._answer(node, sender, bytes(reply), path)

    def _askDirected(
        self, sender: SimulatedMADPort, server: SimulatedMADPort, datagram: bytes, back: bytearray
    ) -> None:
        """Somebody attached answers, not the node's own agent."""
        request = bytearray(datagram)
        request[6] = len(back)
        request[192 : 192 + len(back)] = back
        self._directed[server, datagram[8:16]] = (sender, datagram)
        came = IBDRPath(drPath=tuple(datagram[129 : 129 + datagram[7]]))
        self._later(self.latencySeconds / 2, server.deliver, bytes(request), came)

    def _directedAnswer(self, sender: SimulatedMADPort, datagram: bytes) -> None:
        asked = self._directed.pop((sender, datagram[8:16]), None)
        if asked is None:
            return
        requester, request = asked
        reply = bytearray(datagram)
        reply[4] |= 0x80
        reply[6], reply[7] = 0, request[7]
        reply[128:192] = request[128:192]
        path = IBDRPath(drPath=tuple(request[129 : 129 + request[7]]))
        self._later(self.latencySeconds / 2, requester.deliver, bytes(reply), path)

    def _walk(self, start: SimulatedPort, dlid: int) -> SimulatedPort | None:
        """The port by which a LID's owner is entered, hop by hop by forwarding tables."""
        port = start
        node = port.node
        for hop in range(_LID_HOPS):
            if node.isSwitch:
                own = node.ports[0]
                if _owns(own, dlid):
                    return port
                table = node.linear
                if table is None:
                    table = self.linearOf(node)
                top = node.switchInfo[6] << 8 | node.switchInfo[7]
                out = table[dlid] if dlid < len(table) and dlid <= top else 0xFF
                if not 0 < out < len(node.ports):
                    return None
                port = node.ports[out]
            elif _owns(port, dlid):
                return port
            elif hop:
                return None
            there = port.way
            if there is None or port.info[32] & 15 != PortState.ACTIVE:
                return None
            port = there
            node = port.node
        return None

    def _arrived(self, sender: SimulatedMADPort, port: SimulatedPort, datagram: bytes, path: IBPath) -> None:
        """A datagram that was routed by LID is where it was sent to."""
        node = port.node
        end = node.ports[0] if node.isSwitch else port
        managementClass, method = datagram[1], datagram[3]
        if node.isDead:
            return
        isSMP = managementClass == _SUBN
        came = Envelope(path, sender.port.lid, isSMP)
        if not isSMP and not self._isAdmitted(end, came):
            return
        if method & _RESPONSE or method == _TRAP_REPRESS or _isAboutRMPP(datagram):
            for attachment in end.attachments:
                self._later(self.latencySeconds / 2, attachment.deliver, datagram, came)
            return
        if not isSMP and (node.busyFor or node.redirects):
            excuse = _excuse(node, datagram)
            if excuse is not None:
                self._answer(node, sender, bytes(excuse), came.back())
                return
        if end.attachments:
            server = _servedBy(end, managementClass, method)
            if server is not None:
                delay = self.latencySeconds / 2 + node.delaySeconds
                self._later(delay, server.deliver, datagram, came)
                return
        reply = self._byItself(port, datagram)
        if reply is not None and self._walk(end, path.slid or sender.port.lid) is not None:
            self._answer(node, sender, bytes(reply), came.back())

    def _isAdmitted(self, end: SimulatedPort, came: Envelope) -> bool:
        """Whether the keys of a datagram are right; if not, that is counted, and the manager is told."""
        sent = came.sent
        if end.tables is not None or sent.pkey != DEFAULT_PKEY:
            if not any(sharesPartition(key, sent.pkey) for key in self.sma.keys(end)):
                self._denied(end, 46, badKey(257, end.lid, end.node.kind, came.path(), sent.pkey))
                return False
        if sent.qkey and sent.qkey != GMP_QKEY:
            self._denied(end, 48, badKey(258, end.lid, end.node.kind, came.path(), sent.qkey))
            return False
        return True

    def _denied(self, end: SimulatedPort, counter: int, notice: Notice) -> None:
        violations = min(int.from_bytes(end.info[counter : counter + 2], "big") + 1, 0xFFFF)
        end.info[counter : counter + 2] = violations.to_bytes(2, "big")
        self._trap(end, notice)

    def _byItself(self, port: SimulatedPort, datagram: bytes) -> bytearray | None:
        """What a node's own agents answer; None for silence."""
        if datagram[1] == _SUBN:
            return self.sma.answer(port, datagram)
        if datagram[1] in CLASSES:
            return answerVendor(port, datagram)
        return self.pma.answer(port, datagram) if datagram[1] == _PERFORMANCE else None

    def _answer(self, node: SimulatedNode, to: SimulatedMADPort, reply: bytes, envelope: object) -> None:
        if self.loss and self._isLost():
            return
        self._later(self.latencySeconds + node.delaySeconds, to.deliver, reply, envelope)

    # What happens by itself.

    def _changed(self, port: SimulatedPort) -> None:
        """The link of a port went up or down: its switch says so, and the manager looks."""
        if self.manager is not None and self._resweepSeconds is not None and self._resweep is None:
            self._resweep = self.clock.callLater(self._resweepSeconds, self._sweepAgain)
        for end in (port, port.peer):
            if end is not None and end.node.isSwitch:
                self._trap(end.end, linkChanged(end.node.ports[0].lid))

    def _sweepAgain(self) -> None:
        self._resweep = None
        self.sweep()

    def _violated(self, end: SimulatedPort, datagram: bytes) -> None:
        self._trap(end, badMKey(end.lid, end.node.kind, datagram))

    def _trap(self, end: SimulatedPort, notice: Notice) -> None:
        """Tell the manager of the subnet, if somebody attached is there to hear it (IBA 13.4.9)."""
        smLID = int.from_bytes(end.info[18:20], "big")
        if not smLID or end.node.isDead:
            return
        there = self._walk(end, smLID)
        if there is None:
            return
        server = _servedBy(there.end, _SUBN, _TRAP)
        if server is not None:
            came = IBPath(slid=end.lid, dlid=LID(smLID))
            self._later(
                self.latencySeconds / 2, server.deliver, trapDatagram(notice, next(self._traps)), came
            )


def _owns(port: SimulatedPort, lid: int) -> bool:
    info = port.info
    base = info[16] << 8 | info[17]
    return base != 0 and base <= lid < base + (1 << (info[34] & 7))


def _servedBy(end: SimulatedPort, managementClass: int, method: int) -> SimulatedMADPort | None:
    for attachment in end.attachments:
        if attachment.serves(managementClass, method):
            return attachment
    return None


_RMPP: Final = frozenset((0x03, 0x06, 0x10, 0x12, *range(0x30, 0x50)))


def _isAboutRMPP(datagram: bytes) -> bool:
    """An ACK, a STOP or an ABORT: no request of its own."""
    return datagram[1] in _RMPP and datagram[24] == 1 and datagram[25] > 1


def _excuse(node: SimulatedNode, datagram: bytes) -> bytearray | None:
    """What a node says that is busy, or would have somebody else asked."""
    if node.busyFor:
        node.busyFor -= 1
        return _said(datagram, _BUSY)
    lid = (node.redirects or {}).get(datagram[1])
    return None if lid is None else _redirecting(datagram, lid)


def _said(datagram: bytes, status: int) -> bytearray:
    reply = bytearray(datagram)
    reply[3] = _RESPONSE | (_GET if datagram[3] == _SET else datagram[3])
    reply[4:6] = status.to_bytes(2, "big")
    return reply


def _redirecting(datagram: bytes, lid: LID) -> bytearray:
    """Ask somebody else (IBA 13.4.8.1)."""
    reply = _said(datagram, _REDIRECT)
    where = ClassPortInfo(
        baseVersion=1,
        classVersion=datagram[2],
        redirectLID=lid,
        redirectPKey=0xFFFF,
        redirectQPN=QPN(1),
        redirectQKey=GMP_QKEY,
    )
    where.encodeInto(reply, formatOf(datagram[1]).dataOffset)  # type: ignore[attr-defined]  # every frame has it
    return reply


def describe(port: SimulatedPort) -> str:
    """A port, and what its link does, for people."""
    state = PortState(port.state).name
    return f"{port} {state}/{PhysicalState(port.physicalState).name}"
