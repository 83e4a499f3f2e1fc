"""
A simulated InfiniBand subnet, whose nodes answer management datagrams as real nodes do.

The route of a datagram is computed when it is sent; the answer is delivered later by a C{Clock} or a reactor.
As in a real subnet, nothing is received if a node is unreachable or a datagram is lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from random import Random
from typing import Any, Final

from twisted.internet.interfaces import IReactorTime

from txrdma.fabric.adaptive import MELLANOX
from txrdma.iba.types import GID, GUID
from txrdma.kit.delayedcalls import Timer
from txrdma.mad.layouts.smp import NodeInfo
from txrdma.mad.layouts.traps import Trap
from txrdma.mad.layouts.values import FECMode, PortCapability
from txrdma.mad.registers import ModuleInfo, REGISTERS, SystemInfo
from txrdma.mad.vendor import MlxGeneralInfoExtended
from txrdma.sim.fabric.agents.pma import NAMES
from txrdma.sim.fabric.model import nodes
from txrdma.sim.fabric.model.adaptive import adaptiveTables
from txrdma.sim.fabric.model.counters import SimulatedCounters
from txrdma.sim.fabric.model.forwarding import tableOf
from txrdma.sim.fabric.model.modules import GENERAL_INFO, moduleAt
from txrdma.sim.fabric.sm.election import ManagerCandidate, STANDBY_PRIORITY
from txrdma.sim.fabric.sm.manager import GID_PREFIX, SubnetManager
from txrdma.sim.fabric.sm.sa import SubnetAdministration
from txrdma.sim.fabric.sm.subnet import Subnet
from txrdma.sim.fabric.wire.madport import SimulatedMADPort
from txrdma.sim.fabric.wire.traps import badMKey, linkChanged
from txrdma.sim.nets.netfile import Net

RESWEEP_SECONDS: Final = 1.0
"""Seconds from a change of a link to the sweep of the master SM."""


class SimulatedFabric(Subnet):
    """
    A simulated subnet with its SMs, the SA of the master, and faults.

    @ivar sa: subnet administration of the master SM.
    """

    def __init__(
        self,
        clock: IReactorTime,
        net: Net,
        *,
        latencySeconds: float = 0.0,
        jitterSeconds: float = 0.0,
        loss: float = 0.0,
        seed: int = 0,
        isManaged: bool = True,
        managerAt: str = "",
        lmc: int = 0,
        resweepSeconds: float | None = RESWEEP_SECONDS,
    ) -> None:
        """
        @param latencySeconds: time from a request to its answer.
        @param jitterSeconds: maximum of the random addition to the latency.
        @param loss: probability that a datagram is lost, for each direction independently.
        @param seed: seed of losses and jitter only.
        @param isManaged: whether there is an SM; without one there are no LIDs and only directed routes work.
        @param managerAt: node of the SM; the last host by default.
        @param resweepSeconds: time from a change of a link to the SM's sweep; None for no sweep.
        """
        super().__init__(clock, net, self._changed, self._violated, seed)
        self.wire.latencySeconds, self.wire.jitterSeconds = latencySeconds, jitterSeconds
        self.wire.loss = loss
        self._seconds = clock.seconds
        self._resweepSeconds = resweepSeconds
        self._resweep = Timer(clock)
        self.sa: SubnetAdministration | None = None
        if isManaged:
            self.manage(managerAt, lmc)

    def __repr__(self) -> str:
        return f"<SimulatedFabric of {len(self.nodes)} nodes>"

    # Nodes and ports, by name.

    def node(self, name: str) -> nodes.SimulatedNode:
        """Return the node with this identifier, description or GUID; raise C{ValueError} if there is none."""
        found = self.nodes.get(name)
        if found is not None:
            return found
        for node in self.nodes.values():
            if node.description == name or name.lower() == f"{int(node.guid):#018x}":
                return node
        raise ValueError(f"there is no node {name!r} in this fabric")

    def port(self, name: str, number: int | None = None) -> nodes.SimulatedPort:
        """
        Return a port of a node; without a number, port 0 of a switch, else the first port with a link.

        @raise ValueError: there is no such node or port.
        """
        node = self.node(name)
        if number is None:
            ends = tuple(nodes.endPorts(node))
            return next((port for port in ends if port.neighbor is not None), ends[0])
        if not (0 if node.isSwitch else 1) <= number <= node.numPorts:
            raise ValueError(f"{name!r} has no port {number}")
        return node.ports[number]

    def attach(self, name: str = "", number: int | None = None) -> SimulatedMADPort:
        """Return a management port attached to a port of the fabric, by default of the first host."""
        if not name:
            hosts = (node.identifier for node in self.nodes.values() if not node.isSwitch)
            name = next(hosts, "") or next(iter(self.nodes))
        port = self.port(name, number)
        return self.attachTo(port.end, "" if number is None else f"sim:node={name}/{number}")

    # Subnet managers.

    def manage(self, at: str = "", lmc: int = 0, number: int | None = None) -> SubnetManager:
        """Replace all SMs by one, at a port of a node, by default the first one of the last host."""
        port = self.port(at or self._lastHost(), number).end
        self._endManagers()
        candidate = ManagerCandidate(self, port, self.lead, lmc)
        candidate.lead()
        return candidate.manager

    def _lastHost(self) -> str:
        hosts = [
            node.identifier
            for node in self.nodes.values()
            if not node.isSwitch and any(port.neighbor is not None for port in node.external)
        ]
        return hosts[-1] if hosts else next(iter(self.nodes))

    def standBy(self, at: str, priority: int = STANDBY_PRIORITY) -> ManagerCandidate:
        """
        Add a standby SM at a node. If it outranks the master, the master hands over to it at its next poll.

        @raise ValueError: there is no such node, or it has an SM already.
        """
        port = self.port(at).end
        if port in self.sma.managers:
            raise ValueError(f"there is a manager at {at!r} already")
        candidate = ManagerCandidate(self, port, self.lead, priority=priority)
        candidate.discover()
        for one in self.sma.managers.values():
            assert isinstance(one, ManagerCandidate)
            one.start()
        return candidate

    def lead(self, manager: SubnetManager) -> None:
        """Make this SM the master; its SA begins without group members, services and subscriptions."""
        self.manager = manager
        self.sweep()
        if self.sa is not None:
            self.sa.close()
        self.sa = SubnetAdministration(self, manager.port)

    def _endManagers(self) -> None:
        for one in tuple(self.sma.managers.values()):
            assert isinstance(one, ManagerCandidate)
            one.close()
            one.port.capabilities &= ~PortCapability.SM
        self.sma.managers.clear()

    def sweep(self) -> None:
        """Sweep by the master SM now; the SA reports added and removed ports (traps 64 and 65)."""
        self._resweep.stop()
        manager = self.manager
        if manager is None or manager.port.node.isDead:
            return
        before = set(manager.ports.values())
        manager.sweep()
        after = set(manager.ports.values())
        if self.sa is not None and manager.sweeps > 1:
            for trap, ports in (
                (Trap.GID_IN_SERVICE, after - before),
                (Trap.GID_OUT_OF_SERVICE, before - after),
            ):
                for port in sorted(ports, key=lambda port: port.lid):
                    self.sa.notice(trap, GID.fromParts(GID_PREFIX, port.guid))

    def linearOf(self, switch: nodes.SimulatedNode) -> bytearray:
        """Return the linear forwarding table of a switch, computed if the switch has none yet."""
        return tableOf(switch)

    def close(self) -> None:
        """End the simulation: cancel its timers, and close its SMs and its SA."""
        self._resweep.stop()
        self.timetable.clear()
        self._endManagers()
        if self.sa is not None:
            self.sa.close()

    # Faults.

    def cut(self, name: str, number: int = 1) -> None:
        """Cut the cable of a port, until L{heal}."""
        port = self.port(name, number)
        for end in (port, port.peer):
            if end is not None:
                end.isCut = True
        if port.neighbor is not None:
            nodes.bringDown(port)
            self._changed(port)

    def heal(self, name: str, number: int = 1) -> None:
        """Reconnect the cable of a port after L{cut}."""
        port = self.port(name, number)
        for end in (port, port.peer):
            if end is not None:
                end.isCut = False
        if nodes.bringUp(port):
            self._changed(port)

    def move(self, name: str, number: int, to: str, toNumber: int) -> None:
        """Move one end of a cable from a port to another one without a cable: the link goes down and up."""
        port, other = self.port(name, number), self.port(to, toNumber)
        peer = port.peer
        if peer is None or other.peer is not None:
            raise ValueError(f"port {number} of {name} has no cable, or port {toNumber} of {to} has one")
        self.cut(name, number)
        port.isCut, port.peer = False, None
        other.peer, peer.peer = peer, other
        if port.module:
            other.module = ModuleInfo.decode(port.module).replace(localPort=toNumber).encode()
            port.module = b""
        self.heal(to, toNumber)

    def silence(self, name: str) -> None:
        """
        Let the agents of a node hang, until L{revive}: it answers nothing and forwards no directed routes,
        but its links stay up, and the hardware of a switch still forwards datagrams by their LIDs.
        """
        self.node(name).isDead = True

    def revive(self, name: str) -> None:
        """End the effects of L{silence}, L{slow}, L{busy} and L{redirect} on a node."""
        node = self.node(name)
        node.isDead, node.delaySeconds, node.busyFor, node.redirects = False, 0.0, 0, None

    def slow(self, name: str, seconds: float) -> None:
        """Let a node take this many more seconds to answer."""
        self.node(name).delaySeconds = seconds

    def busy(self, name: str, requests: int) -> None:
        """Let a node answer this number of requests with BUSY."""
        self.node(name).busyFor = requests

    def redirect(self, name: str, managementClass: int, to: str) -> None:
        """Let a node redirect requests of a class to another node (ClassPortInfo)."""
        node = self.node(name)
        node.redirects = {**(node.redirects or {}), managementClass: self.port(to).end.lid}

    def duplicate(self, name: str, of: str) -> None:
        """Give a node the GUID of another node."""
        self.node(name).setGUID(self.node(of).guid)

    def rename(self, name: str, guid: GUID) -> None:
        """Give a node another GUID."""
        self.node(name).setGUID(guid)

    # Properties of nodes.

    def runFDR10(self, *names: str) -> None:
        """Let all links of these nodes, by default of all nodes, run at FDR10 (Mellanox ExtendedPortInfo)."""
        for node in map(self.node, names) if names else self.nodes.values():
            for port in node.external:
                nodes.learnFDR10(port)
                if port.neighbor is not None:
                    nodes.learnFDR10(port.neighbor)
                    nodes.negotiate(port, port.neighbor)

    def correct(self, *names: str, mode: FECMode = FECMode.RS_FEC) -> None:
        """
        Let all ports of these nodes, by default of all nodes, report this FEC mode (PortInfoExtended) and use
        its form of counters.
        """
        for node in map(self.node, names) if names else self.nodes.values():
            for port in node.external:
                nodes.learnCorrection(port, mode)

    def haveFirmware(self, name: str, info: MlxGeneralInfoExtended) -> None:
        """Let a node be a Mellanox device with this GeneralInfo."""
        node = self.node(name)
        node.generalInfo = info.encode()
        node.info = NodeInfo.decode(node.info).replace(vendorID=MELLANOX).encode()

    def haveModule(self, name: str, number: int, **changes: Any) -> None:
        """
        Let a port have an active cable that can be read: its node becomes a device of NVIDIA with registers.

        @param changes: values of fields of L{ModuleInfo}; those of the port's present cable remain.
        """
        node, port = self.node(name), self.port(name, number)
        if not node.systemInfo:
            info = NodeInfo.decode(node.info)
            serial = f"SN{int(info.nodeGUID) & 0xFFFFFFFF:08X}".encode()
            node.systemInfo = SystemInfo(
                serialNumber=serial.ljust(24, b"\0"), partNumber=b"SIMULATED".ljust(20, b"\0")
            ).encode()
            general = MlxGeneralInfoExtended.decode(node.generalInfo) if node.generalInfo else GENERAL_INFO
            self.haveFirmware(name, general.replace(capabilityMask=REGISTERS))
        before = ModuleInfo.decode(port.module) if port.module else moduleAt(port)
        port.module = before.replace(**changes).encode()

    def haveModules(self) -> None:
        """Let all ports with a cable have one that can be read."""
        for name, node in self.nodes.items():
            for port in node.external:
                if port.peer is not None:
                    self.haveModule(name, port.number)

    def routeAdaptively(self, name: str, choices: Mapping[int, Iterable[int]]) -> None:
        """
        Let a switch choose among several output ports for some LIDs.

        @param choices: the ports by LID.
        """
        node = self.node(name)
        node.adaptive = adaptiveTables(choices)
        node.info = NodeInfo.decode(node.info).replace(vendorID=MELLANOX).encode()

    def countWide(self, *names: str) -> None:
        """Let the ports of these nodes, by default of all nodes, count errors and waits in 64 bits, too."""
        for node in map(self.node, names) if names else self.nodes.values():
            node.countsWide = True

    # Counters.

    def counters(self, name: str, number: int = 1) -> SimulatedCounters:
        """Return the counters of a port, which can be set and can grow."""
        return self.port(name, number).count()

    def setCounters(self, name: str, number: int, **values: int) -> None:
        """
        Set counters of a port to these values.

        @raise ValueError: there is no such node, port or counter.
        """
        _checkNames(values)
        self.counters(name, number).set(self._seconds(), **values)

    def growCounters(self, name: str, number: int, **rates: float) -> None:
        """
        Let counters of a port, such as error counters, grow at these rates per second.

        @raise ValueError: there is no such node, port or counter.
        """
        _checkNames(rates)
        self.counters(name, number).grow(self._seconds(), **rates)

    def traffic(self, wordsPerSecond: float, packetsPerSecond: float) -> None:
        """Let data counters of all links grow at random rates for each direction, these on average."""
        now = self._seconds()
        random = Random(0)
        for node in self.nodes.values():
            for port in node.external:
                peer = port.neighbor
                if peer is None or (peer.node.identifier, peer.number) < (node.identifier, port.number):
                    continue
                share, back = random.random() * 2, random.random() * 2
                for end, out, into in ((port, share, back), (peer, back, share)):
                    words, packets = (
                        (rate * out, rate * into) for rate in (wordsPerSecond, packetsPerSecond)
                    )
                    end.count().carry(now, words, packets)

    def errors(self, perSecond: float) -> None:
        """Let symbol errors at both ends of all links grow at random rates, C{perSecond} on average."""
        now = self._seconds()
        random = Random(1)
        for node in self.nodes.values():
            for port in node.external:
                if port.neighbor is not None:
                    port.count().grow(now, symbolErrorCounter=perSecond * random.random() * 2)

    # Events of the fabric.

    def _changed(self, port: nodes.SimulatedPort) -> None:
        """Send trap 128 from the switches at a port's changed link, and schedule a sweep by the SM."""
        if self.manager is not None and self._resweepSeconds is not None:
            self._resweep.ensure(self._resweepSeconds, self.sweep)
        for end in (port, port.peer):
            if end is not None and end.node.isSwitch:
                self.wire.trap(end.end, linkChanged(end.node.ports[0].lid))

    def _violated(self, end: nodes.SimulatedPort, datagram: bytes) -> None:
        self.wire.trap(end, badMKey(end.lid, end.node.kind, datagram))


def _checkNames(counters: Iterable[str]) -> None:
    unknown = sorted(set(counters) - NAMES)
    if unknown:
        raise ValueError(f"no attribute has the counter {', '.join(unknown)}")
