"""
Twins: simulated fabrics made from recordings, with the nodes, tables and counters of a real fabric.

The recorded forwarding tables hold as long as the recorded links are there. While one is missing, those that
the simulated SM computes by shortest paths hold instead, since the routing engine of the real SM is not
known. It also brings ports to ACTIVE that were not in the recording.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from txrdma.error import InvalidRequest, WireError
from txrdma.fabric.model import localPortIn, Node, PortKey
from txrdma.fabric.recording import Answer, Recording, registerOf
from txrdma.iba.types import GUID
from txrdma.iba.verbs import PhysicalState, PortState
from txrdma.kit.delayedcalls import Timer
from txrdma.kit.rawfields import span
from txrdma.mad.layouts import adaptive, pma, smp
from txrdma.mad.layouts.capabilities import PerformanceCapability2
from txrdma.mad.layouts.messages import ClassPortInfo
from txrdma.mad.layouts.sa import PathRecord
from txrdma.mad.registers import AccessRegister, MODULE, ModuleInfo, SYSTEM, SystemInfo
from txrdma.sim.fabric.agents.pma import countersIn, NAMES
from txrdma.sim.fabric.fabric import RESWEEP_SECONDS, SimulatedFabric
from txrdma.sim.fabric.model.nodes import (
    bringDown,
    bringUp,
    EXTENDED_PORT_INFO,
    PORT_INFO_EXTENDED,
    SimulatedNode,
    SimulatedPort,
)
from txrdma.sim.fabric.sm.election import ManagerCandidate
from txrdma.sim.fabric.wire.madport import SimulatedMADPort
from txrdma.sim.netfabrics import netOf
from txrdma.sim.nets.netfile import Net

_log = Logger()

_MKEY: Final = span(smp.PortInfo, "mkey")
_NO_MKEY: Final = bytes(_MKEY.stop - _MKEY.start)
_WORD: Final = 4
"""Octets of the words in which ports count data."""

LATENCY_SECONDS: Final = 0.0005
"""Time to an answer of a simulated node, as in small fabrics."""

_LANES_LENGTH: Final = 8
_ALL_PORTS: Final = 0xFF
_WIDE: Final = int(PerformanceCapability2.ADDITIONAL_PORT_COUNTERS_EXTENDED)
_TRAFFIC: Final = ("Data", "Pkts")
"""Ends of the names of counters that all PortCountersExtended have; those of errors may be zero there."""

_ADAPTIVE: Final = (
    adaptive.AdaptiveRoutingInfo,
    adaptive.AdaptiveGroupTable,
    adaptive.AdaptiveForwardingTable,
)
_CORRECTIONS: Final = (pma.PortExtendedSpeedsCounters, pma.PortExtendedSpeedsCountersRSFEC)


class Twin(SimulatedFabric):
    """
    A simulated fabric like one that was recorded.

    @ivar local: the port that has made the recording, as name and number; the first host's if unknown.
    """

    def __init__(
        self,
        clock: IReactorTime,
        recordings: Sequence[Recording],
        *,
        latencySeconds: float = 0.0,
        jitterSeconds: float = 0.0,
        loss: float = 0.0,
        seed: int = 0,
        isManaged: bool = True,
        resweepSeconds: float | None = RESWEEP_SECONDS,
    ) -> None:
        """
        @param recordings: recordings of one fabric; it begins as the first one. Nodes that only others have
            are disconnected.
        @raise InvalidRequest: a recording is damaged.
        @param isManaged: whether there is an SM, at the node that has it in the first recording.
        """
        first = recordings[0]
        super().__init__(
            *(clock, _netOf(recordings)),
            latencySeconds=latencySeconds,
            jitterSeconds=jitterSeconds,
            loss=loss,
            seed=seed,
            isManaged=False,
            resweepSeconds=resweepSeconds,
        )
        self._byGUID: dict[GUID, SimulatedNode] = {node.guid: node for node in self.nodes.values()}
        self.local: tuple[str, int | None] = "", None
        for recorded in first.fabric.nodes.values():
            if recorded.isLocal:
                number = None if recorded.isSwitch else localPortIn(recorded.raw)
                self.local = self._byGUID[recorded.guid].identifier, number
        self._recording = first
        self._wanted: dict[SimulatedPort, SimulatedPort] = {}
        try:
            self._cable(first)
            self._describe(first)
            if isManaged:
                hosts = (port for port in first.fabric.endPorts() if not port.node.isSwitch and port.lid)
                lmcs = Counter(port.lmc for port in hosts)
                at, number = self._managerOf(first)
                self.manage(at, lmcs.most_common(1)[0][0] if lmcs else 0, number)
                self._addManagers(first)
            self._overlay(first)
        except (IndexError, WireError) as error:
            self.close()
            raise InvalidRequest(f"the snapshot is damaged: {error}") from error

    def attach(self, name: str = "", number: int | None = None) -> SimulatedMADPort:
        """Return a management port attached to a port, by default to that which has made the recording."""
        return super().attach(name, number) if name else super().attach(*self.local)

    def _managerOf(self, recording: Recording) -> tuple[str, int | None]:
        """Return the name of the node with the master SM, and its port; C{""} if it is unknown."""
        ends = [port for port in recording.fabric.endPorts() if port.lid]
        masters = Counter(port.info.masterSMLID for port in ends)
        lid = recording.endPort.smLID or (masters.most_common(1)[0][0] if masters else 0)
        port = recording.fabric.byLID(lid) if lid else None
        return ("", None) if port is None else (self._byGUID[port.node.guid].identifier, port.number)

    def _addManagers(self, recording: Recording) -> None:
        """Let the other SMs of a recording answer as they did. They do not replace a lost master."""
        for port, _part, content in self._answers(recording, "SubnGet", smp.SMInfo):
            known = self.sma.managers.get(port.end)
            info = smp.SMInfo.decode(content)
            if known is None:
                known = ManagerCandidate(self, port.end, self.lead)
                known.state = info.smState
            known.priority = info.priority

    def sweep(self) -> None:
        """Let the master SM sweep; while all recorded links are up, recorded routes replace its routes."""
        super().sweep()
        self._route(all(port.neighbor is peer for port, peer in self._wanted.items()))

    def become(self, recording: Recording, following: Recording | None = None, speed: float = 1.0) -> None:
        """
        Take the state of a recording: cables, port states, tables and counters.

        @param following: the next recording: counters grow so that they have its values at its time.
        @param speed: factor by which time passes faster than in the recordings.
        """
        self._recording = recording
        changed = self._cable(recording)
        self._describe(recording)
        if self.manager is not None and changed:
            self.sweep()
        self._overlay(recording)
        if following is not None and following.at > recording.at:
            self._grow(recording, following, (following.at - recording.at) / speed)
        for port in changed:
            self._changed(port)

    def growAs(self, rates: Mapping[PortKey, Mapping[str, float]], speed: float = 1.0) -> None:
        """Let counters grow at these rates per second from now on, data in octets; others are ignored."""
        now = self.clock.seconds()
        for portKey, several in rates.items():
            port = self.portAt(portKey)
            if port is not None:
                units = {name: _WORD if name.endswith("Data") else 1 for name in several if name in NAMES}
                known = {name: several[name] * speed / unit for name, unit in units.items()}
                port.count().grow(now, **known)

    def setLink(self, link: tuple[PortKey, PortKey], isThere: bool) -> None:
        """Cut or reconnect the cable between two ports; without effect if this fabric has none there."""
        one, other = map(self.portAt, link)
        if one is not None and other is not None and one.peer is other:
            (self.heal if isThere else self.cut)(one.node.identifier, one.number)

    # Cables and nodes.

    def portAt(self, portKey: PortKey) -> SimulatedPort | None:
        """Return a port by the GUID of its node and its number, or None if there is none."""
        node = self._byGUID.get(portKey[0])
        return node.ports[portKey[1]] if node is not None and portKey[1] < len(node.ports) else None

    def _cable(self, recording: Recording) -> list[SimulatedPort]:
        """Connect the cables of a recording, and return the ports whose links have changed."""
        wanted = self._wanted = {}
        for ends in recording.fabric.links():
            one, other = (self.portAt((end.node.guid, end.number)) for end in ends)
            if one is not None and other is not None:
                wanted[one], wanted[other] = other, one
        ports = [port for node in self.nodes.values() for port in node.external]
        changed = [port for port in ports if port.neighbor is not wanted.get(port)]
        for port in changed:
            if port.neighbor is not None:
                bringDown(port)
            port.isCut = port not in wanted
        for port in changed:
            if port in wanted:
                port.peer = wanted[port]
                port.become(PortState.DOWN, PhysicalState.POLLING)  # it may have been disabled
        for port in changed:
            bringUp(port)
        return changed

    def _describe(self, recording: Recording) -> None:
        """Set what nodes and ports report of themselves."""
        for recorded in recording.fabric.nodes.values():
            node = self._byGUID[recorded.guid]
            node.description, node.info = recorded.description, recorded.raw
            node.portGUIDs = _portGUIDs(recorded)
            for port in recorded.ports.values():
                known = self.portAt((recorded.guid, port.number))
                if known is None or not port.raw:
                    continue
                known.info[:] = port.raw
                known.info[_MKEY] = _NO_MKEY
                if port.vendors:
                    _store(known, *EXTENDED_PORT_INFO, port.vendors)

    # Tables and counters.

    def _overlay(self, recording: Recording) -> None:
        """Set all recorded values, some of which the SM has changed."""
        self._describe(recording)
        self._route(True)
        self._setMulticast(recording)
        for port, part, content in self._answers(recording, "SubnGet", smp.SLtoVLMappingTable):
            incoming, outgoing = smp.SLtoVLMappingTable.partsOf(part) if port.node.isSwitch else (0, 0)
            one = port.node.ports[outgoing] if port.node.isSwitch else port
            _store(one, smp.SLtoVLMappingTable.attributeID, incoming, content[:_LANES_LENGTH])
        for port, part, content in self._answers(recording, "SubnGet", smp.VLArbitrationTable):
            one = port.node.ports[part & 0xFF] if port.node.isSwitch else port
            _store(one, smp.VLArbitrationTable.attributeID, part >> 16, content)
        for port, part, content in self._answers(recording, "SubnGet", smp.PKeyTable):
            one = port.node.ports[part >> 16] if port.node.isSwitch else port
            _store(one, smp.PKeyTable.attributeID, part & 0xFFFF, content)
        for port, part, content in self._answers(recording, "SubnGet", smp.PortInfoExtended):
            one = port.node.ports[part] if 0 < part <= port.node.numPorts else port
            _store(one, *PORT_INFO_EXTENDED, content)
        for port, _part, content in self._answers(recording, "VendGet", None, "MlxGeneralInfoExtended"):
            port.node.generalInfo = content
        self._setRegisters(recording)
        self._setCounting(recording)
        now = self.clock.seconds()
        for portKey, values in self._counters(recording).items():
            known = self.portAt(portKey)
            if known is not None:
                known.count().set(now, **values)

    def _answers(
        self, recording: Recording, rpc: str, kind: type[Any] | None, name: str = ""
    ) -> Iterator[tuple[SimulatedPort, int, bytes]]:
        """Yield the encoded answers to a call, each with the port that has given it, and the part."""
        ports = recording.fabric.byLIDs()
        several: dict[tuple[int, int], Answer] = recording.of(rpc, name or getattr(kind, "__name__", ""))
        for (lid, part), answer in several.items():
            recorded = ports.get(lid)
            port = None if recorded is None else self.portAt((recorded.node.guid, recorded.number))
            if port is not None and isinstance(answer, bytes):
                yield port, part, answer

    def _route(self, isRecorded: bool) -> None:
        """Set the recorded unicast routes and service levels, or remove what the SM does not compute."""
        self._setLevels(self._recording if isRecorded else None)
        for node in self.nodes.values():
            node.adaptive = None
        if not isRecorded:
            return
        for recorded in self._recording.fabric.switches():
            info = recorded.switchInfo
            if info is not None:
                self._byGUID[recorded.guid].switchInfo[:] = info.encode()
        for guid, table in self._recording.linearTables().items():
            self._byGUID[guid].linear = bytearray(table)
        for kind in _ADAPTIVE:
            for port, block, content in self._answers(self._recording, "SubnGet", kind):
                port.node.adaptive = port.node.adaptive or {}
                port.node.adaptive[kind.attributeID, block] = content

    def _setMulticast(self, recording: Recording) -> None:
        for port, part, content in self._answers(recording, "SubnGet", smp.MulticastForwardingTable):
            multicast = port.node.multicast = port.node.multicast or {}
            multicast[part >> 28, part & 0x1FF] = content

    def _setRegisters(self, recording: Recording) -> None:
        """Let devices have the recorded serial numbers and modules, and no others."""
        for node in self.nodes.values():
            for one in node.external:
                one.module = b""
        for port, part, content in self._answers(recording, "VendGet", AccessRegister):
            register, number = registerOf(part)
            content = AccessRegister.decode(content).content
            if register == SYSTEM:
                port.node.systemInfo = content[: SystemInfo.size]
            elif register == MODULE and 0 < number <= port.node.numPorts:
                port.node.ports[number].module = content[: ModuleInfo.size]

    def _setCounting(self, recording: Recording) -> None:
        """Let nodes that did not answer for their counters be silent about them, if they were asked."""
        counting = {
            port.node
            for rpc, name in recording.answers
            if rpc == "PerformanceGet"
            for port, _part, _content in self._answers(recording, rpc, None, name)
        }
        for recorded in recording.fabric.nodes.values():
            node = self._byGUID[recorded.guid]
            node.hasCounters = not counting or not recorded.lid or node in counting

    def _setLevels(self, recording: Recording | None) -> None:
        """Let the SA report the recorded service levels, if any; those of other paths are zero."""
        levels: dict[tuple[int, int], int] = {}
        answers = {} if recording is None else recording.of("SubnAdmGetTable", PathRecord.__name__)
        for answer in answers.values():
            for content in answer if isinstance(answer, list) else ():
                path = PathRecord.decode(content)
                levels[path.slid, path.dlid] = path.serviceLevel
        if self.sa is not None:
            self.sa.paths.levelOf = lambda source, dlid: levels.get((source.lid, dlid), 0)

    def _counters(self, recording: Recording) -> dict[PortKey, dict[str, int]]:
        """Return the recorded counters of all ports."""
        for port, _part, content in self._answers(recording, "PerformanceGet", ClassPortInfo):
            port.node.countsWide = bool(ClassPortInfo.decode(content).capabilityMask2 & _WIDE)
        found: dict[PortKey, dict[str, int]] = {}
        for kind in (pma.PortCounters, pma.PortCountersExtended, *_CORRECTIONS):
            for port, part, content in self._answers(recording, "PerformanceGet", kind):
                if part == _ALL_PORTS:
                    continue
                values = countersIn(kind.decode(content))
                if kind is pma.PortCountersExtended and not port.node.countsWide:
                    values = {name: value for name, value in values.items() if name.endswith(_TRAFFIC)}
                found.setdefault((port.node.guid, part), {}).update(values)
        return found

    def _grow(self, recording: Recording, following: Recording, seconds: float) -> None:
        """Let counters grow so that they have the following values after a time."""
        before, now = self._counters(recording), self.clock.seconds()
        for portKey, after in self._counters(following).items():
            known, values = self.portAt(portKey), before.get(portKey, {})
            if known is not None:
                both = values.keys() & after.keys()  # a port may not have answered for all
                rates = {name: max(0, after[name] - values[name]) / seconds for name in both}
                known.count().grow(now, **rates)


class Replay:
    """Lets a twin take the states of several recordings at their times, from L{start} to L{stop}."""

    def __init__(self, twin: Twin, recordings: Sequence[Recording], speed: float = 1.0) -> None:
        """
        @param recordings: recordings in the order of their times.
        @param speed: factor by which time passes faster than in the recordings.
        """
        self._twin = twin
        self._recordings = list(recordings)
        self._speed = speed
        self._timer = Timer(twin.clock)
        self._at = 0

    def start(self) -> None:
        """Begin with the first recording. After the last one, nothing changes any more."""
        self._show()

    def stop(self) -> None:
        """End the replay. Idempotent."""
        self._timer.stop()

    def _show(self) -> None:
        recording, *later = self._recordings[self._at :]
        self._at += 1
        if later:
            self._timer.start(max(0.0, later[0].at - recording.at) / self._speed, self._show)
        with _log.failuresHandled("the recording of {at} was not replayed", at=recording.at):
            self._twin.become(recording, later[0] if later else None, self._speed)


def _netOf(recordings: Sequence[Recording]) -> Net:
    """Return a net with the links of the first recording, and the nodes of all."""
    net = netOf(recordings[0].fabric)
    for recording in recordings[1:]:
        for name, node in netOf(recording.fabric).nodes.items():
            if name not in net.nodes:
                node.links.clear()
                net.nodes[name] = node
    return net


def _portGUIDs(recorded: Node) -> dict[int, GUID]:
    known = recorded.portGUIDs
    if recorded.isSwitch:
        return dict.fromkeys(range(recorded.numPorts + 1), known[0])
    return known


def _store(port: SimulatedPort, attribute: int, block: int, content: bytes) -> None:
    port.tables = {**(port.tables or {}), (attribute, block): content}
