"""
Simulated fabrics answer as ibsim does where OpenSM has configured it: every attribute of every node and port.

OpenSM's settings are read from ibsim, and written to the simulated fabric; then both get all requests that
ibsim answers. Besides the exceptions of L{txrdma.test.system.ibsim.test_sim_answers}, these are not compared:

  - C{subnetTimeOut}, which ibsim never changes;
  - SMInfo, which ibsim does not answer itself;
  - counters of data and packets, in which ibsim counts the requests of its clients;
  - errors in PortCountersExtended, which ibsim's do not have;
  - of switches with more than eight ports, the lanes from all ports in but two: the tables are alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any

from txrdma.fabric.errorcounters import DATA_COUNTERS, UNICAST_COUNTERS
from txrdma.iba.path import IBDRPath
from txrdma.iba.types import GUID
from txrdma.mad.layouts import pma, smp
from txrdma.mad.layouts.attributes import Attribute
from txrdma.mad.layouts.messages import ClassPortInfo
from txrdma.mad.layouts.values import PortCapability
from txrdma.sim.fabric import SimulatedFabric
from txrdma.sim.nets.fattree import fatTree
from txrdma.test.support.mad.simulated import gmp, TWO_SWITCHES
from txrdma.test.system.ibsim.fabric import example, NO_EXAMPLES
from txrdma.test.system.ibsim.test_sim_answers import AnswersMixin, AT_ONCE, Question

MOST_PORTS = 8
ARMED, ACTIVE = 3, 4
CONSOLE = (
    *("SymbolErrorCounter", "LinkErrorRecoveryCounter", "LinkDownedCounter", "PortRcvErrors"),
    *("PortRcvRemotePhysicalErrors", "PortRcvSwitchRelayErrors", "PortXmitDiscards"),
    *("PortXmitConstraintErrors", "PortRcvConstraintErrors", "LocalLinkIntegrityErrors"),
    *("ExcessiveBufferOverrunErrors", "PortXmitWait", "VL15Dropped"),
)
"""Counters that can be set at ibsim's console."""

OURS = {"VL15Dropped": "vl15Dropped"}

COUNTED = frozenset((*DATA_COUNTERS, *UNICAST_COUNTERS))
PLAIN = smp.NodeInfo, smp.NodeDescription, smp.SwitchInfo, smp.GUIDInfo
DETAILS = (
    *(pma.PortRcvErrorDetails, pma.PortXmitDiscardDetails, pma.PortOpRcvCounters, pma.PortFlowCtlCounters),
    *(pma.PortVLOpPackets, pma.PortVLOpData, pma.PortVLXmitFlowCtlUpdateErrors, pma.PortVLXmitWaitCounters),
)


class Place:
    def __init__(self, node: Any) -> None:
        self.route: IBDRPath = node.route
        self.isSwitch: bool = node.isSwitch
        self.ports: int = node.info.numPorts
        own = node.ports.get(0) if node.isSwitch else None
        self.entry: int = 0 if node.isSwitch else node.info.localPortNum
        self.info: smp.PortInfo = (own or node.ports[self.entry]).info
        self.guid: GUID = node.guid
        self.linked = [port.number for port in node.ports.values() if port.peer is not None]

    def name(self, fabric: SimulatedFabric) -> str:
        return next(name for name, node in fabric.nodes.items() if node.guid == self.guid)

    def numbers(self) -> range:
        return range(self.ports + 1) if self.isSwitch else range(1, self.ports + 1)

    def incoming(self) -> Sequence[int]:
        return range(self.ports + 1) if self.ports <= MOST_PORTS else (0, self.ports)

    def tables(self, top: int) -> Iterator[tuple[type[Attribute], int]]:
        """Return the tables that can be set, and their modifiers."""
        if not self.isSwitch:
            yield from ((smp.PKeyTable, 0), (smp.PKeyTable, 1), (smp.SLtoVLMappingTable, 0))
            yield from ((smp.VLArbitrationTable, block << 16) for block in (1, 3))
            return
        yield from ((smp.LinearForwardingTable, block) for block in range(top // 64 + 1))
        for position in range(self.ports // 16 + 1):
            yield from ((smp.MulticastForwardingTable, position << 28 | block) for block in range(3))
        for number in self.numbers():
            yield smp.PKeyTable, number << 16
            yield from ((smp.VLArbitrationTable, block << 16 | number) for block in (1, 3))
            yield from ((smp.SLtoVLMappingTable, port << 8 | number) for port in self.incoming())


class ManagedTestCase(AnswersMixin):
    net = TWO_SWITCHES
    hasSM = True

    async def prepare(self) -> list[Place]:
        places = [Place(node) for _route, node in await self.places()]
        self.top = max(place.info.lid for place in places)
        ports = [(smp.PortInfo, place.route, number) for place in places for number in place.numbers()]
        switches = [(smp.SwitchInfo, place.route, 0) for place in places if place.isSwitch]
        await self.copy(ports, stateless)
        await self.copy(switches, unchanged)
        await self.copy(
            (kind, place.route, modifier) for place in places for kind, modifier in place.tables(self.top)
        )
        for state in (ARMED, ACTIVE):
            await self.copy((port for port in ports if port[2]), partial(risen, state))
        self.copySM(places)
        return places

    async def copy(
        self,
        questions: Iterable[tuple[type[Attribute], IBDRPath, int]],
        made: Callable[[Any], Attribute] = lambda content: content,
    ) -> None:
        waiting = iter(questions)
        while some := list(islice(waiting, AT_ONCE)):
            reported = [await call for call in [self.theirAgent.SubnGet(*question) for question in some]]
            set = [
                self.ourAgent.SubnSet(made(content), path, modifier)
                for content, (_kind, path, modifier) in zip(reported, some, strict=True)
            ]
            self.clock.pump([0] * 3)
            for call in set:
                await call

    def copySM(self, places: list[Place]) -> None:
        for place in places:
            if place.info.capabilityMask & PortCapability.SM:
                port = self.ours.port(place.name(self.ours), place.entry)
                port.info[20:24] = place.info.capabilityMask.to_bytes(4, "big")

    def managementQuestions(self, places: list[Place]) -> Iterator[Question]:
        for place in places:
            yield from (("SubnGet", kind, place.route, 0) for kind in PLAIN)
            for number in (*place.numbers(), place.ports + 1, 0xFF):
                yield "SubnGet", smp.PortInfo, place.route, number
                yield "SubnGet", smp.ExtendedPortInfo, place.route, number
            for kind, modifier in place.tables(self.top):
                yield "SubnGet", kind, place.route, modifier

    def counterQuestions(self, places: list[Place]) -> Iterator[Question]:
        for place in places:
            path = gmp(place.info.lid)
            yield "PerformanceGet", ClassPortInfo, path, 0
            for number in (*range(place.ports + 2), 0xFF):
                yield "PerformanceGet", pma.PortCounters(portSelect=number), path, 0
                yield "PerformanceGet", pma.PortCountersExtended(portSelect=number), path, 0
            for number in (place.entry or 1, 0, place.ports + 1, 0xFF):
                yield from (("PerformanceGet", kind(portSelect=number), path, 0) for kind in DETAILS)

    def settingQuestions(self, places: list[Place]) -> Iterator[Question]:
        for place in places:
            path, number = gmp(place.info.lid), place.entry or 1
            for select in (0x0000, 0x0001, 0x0804, 0x0010, 0x0FFF):
                yield "PerformanceSet", pma.PortCounters(portSelect=number, counterSelect=select), path, 0
                for asked in (number, 0xFF):
                    yield "PerformanceGet", pma.PortCounters(portSelect=asked), path, 0


class ManagedAnswersTests(ManagedTestCase):
    smConfiguration = "qos TRUE\nqos_high_limit 7\nlmc 1\nsubnet_prefix 0xfec0000000000001"

    async def test_everything(self) -> None:
        places = await self.prepare()
        asked = await self.compare(self.managementQuestions(places), {"subnetTimeOut"})
        self.assertGreater(asked, 20 * len(places))
        counted = await self.compare(self.counterQuestions(places), COUNTED)
        self.assertGreater(counted, 10 * len(places))


class CountedAnswersTests(ManagedTestCase):
    async def test_counted(self) -> None:
        places = (await self.prepare())[:4]
        for place in places:
            name, number = place.name(self.ours), place.entry or 1
            for value, counter in enumerate(CONSOLE, 2):
                self.fabric.console(f'PerformanceSet "{name}"[{number}] PortCounters.{counter}={value}')
                self.ours.setCounters(
                    name, number, **{OURS.get(counter, counter[0].lower() + counter[1:]): value}
                )
        await self.compare(self.settingQuestions(places), COUNTED)


def stateless(info: smp.PortInfo, state: int = 0) -> smp.PortInfo:
    fields = {field.name: getattr(info, field.name) for field in info.fields}
    return smp.PortInfo(**{**fields, "portState": state, "portPhysicalState": 0})


def risen(state: int, info: smp.PortInfo) -> smp.PortInfo:
    return stateless(info, state if info.portState >= state else 0)


def unchanged(info: smp.SwitchInfo) -> smp.SwitchInfo:
    fields = {field.name: getattr(info, field.name) for field in info.fields}
    return smp.SwitchInfo(**{**fields, "portStateChange": True})


class ExampleTests(ManagedAnswersTests):
    net = example("net.2sw2path4hca2port")
    skip = NO_EXAMPLES


class TreeTests(ManagedAnswersTests):
    net = fatTree(40, 8).text()
