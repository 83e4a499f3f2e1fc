"""
Simulated fabrics answer as ibsim does over the same net file, field by field.

These are the differences, in which ibsim is wrong:

  - ibsim forwards unknown attributes to the attached program, and reports that there is no path.
    Simulated fabrics refuse them with status 0x0C (IBA 13.4.7).
  - ibsim returns blocks beyond a table's capacity: for forwarding tables the memory after them, for multicast
    tables and GUIDs zeros. Simulated fabrics refuse them with status 0x1C.
  - ibsim lets a directed route leave a host by port 0, and end by port 0 of a switch; simulated ones do not.
  - ibsim puts the sender's port into the first byte of the return path; here it is 0 (IBA 14.2.2).
  - ibsim's routers have GUID 0 unless the file has one. Here they are numbered like hosts.
  - In ibsim a port becomes ACTIVE only when its peer is ARMED; here by request alone (IBA 7.2.7).
  - ibsim keeps a port's SubnetTimeOut at 31, whatever is set.
  - ibsim ignores unsupported speeds, and 30, no extended speed. Simulated fabrics refuse the first with
    status 0x1C, and accept the second (IBA 14.2.5.6).
  - ibsim counts the datagrams of its clients in port counters; here tests set the counters.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from txrdma.fabric.discovery import Sweep
from txrdma.iba.path import IBDRPath, IBPath
from txrdma.iba.types import LID
from txrdma.mad.agent import MADAgent
from txrdma.mad.errors import MADError, MADFailure
from txrdma.mad.layouts import smp
from txrdma.mad.layouts.attributes import Attribute
from txrdma.sim.fabric import SimulatedFabric
from txrdma.sim.nets.netfile import parseNet
from txrdma.test.support.mad.simulated import TWO_SWITCHES
from txrdma.test.system.ibsim.fabric import IbsimTestCase

Question = tuple[str, Any, IBPath, int]

AT_ONCE = 100
"""Maximum number of outstanding requests."""


MIXED = """
width=3
speed=7
extspeed=7

Switch 8 "left" # "a switch of many words"
[1] "a"[1] w=1
[2] "b"[1] s=1 e=1
[3] "right"[3] w=3 s=3
[4] "right"[4] e=3

switchguid=0xabcdef
Switch 4 "right"
[1] "c"[1]
[3] "left"[3] s=1

caguid=0x123400
Hca 2 "a"
Hca 2 "b"
[2] "right"[2] w=2

vendid=0x2c9
devid=4123
Hca 1 "c"
"""

SLOW = """
Switch 4 "only"
[1] "a"[1]
[2] "b"[1]

Hca 1 "a"
Hca 1 "b"
"""


class AnswersMixin(IbsimTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.clock = Clock()
        self.ours = SimulatedFabric(self.clock, parseNet(self.net), isManaged=False)
        self.theirAgent = self.agentAt()
        self.ourAgent = MADAgent(self.clock, self.ours.attach(self.fabric.host), timeoutSeconds=1.0)
        self.addCleanup(self.ourAgent.close)

    async def ask(self, questions: Sequence[Question]) -> list[tuple[object, object]]:
        reference, ours = (
            [agent.call(rpc, payload, path, modifier) for rpc, payload, path, modifier in questions]
            for agent in (self.theirAgent, self.ourAgent)
        )
        self.clock.pump([0] * 3)
        if not all(call.called for call in ours):
            self.clock.pump([1] * 30)
        return [
            (await _outcome(one), await _outcome(other)) for one, other in zip(reference, ours, strict=True)
        ]

    async def compare(self, questions: Iterable[Question], leaveOut: Container[str] = ()) -> int:
        count = 0
        different: list[str] = []
        waiting = iter(questions)
        while some := list(islice(waiting, AT_ONCE)):
            count += len(some)
            for (_rpc, payload, path, modifier), (reference, ours) in zip(
                some, await self.ask(some), strict=True
            ):
                kind = payload if isinstance(payload, type) else type(payload)
                where = f"{kind.__name__} {getattr(path, 'drPath', path.dlid)} {modifier:#x}"
                different += (f"{where}: {line}" for line in differences(ours, reference, leaveOut))
        self.assertEqual(different, [])
        return count

    async def places(self) -> list[tuple[IBDRPath, Any]]:
        fabric = await Sweep(self.theirAgent).run()
        return [(node.route, node) for node in fabric.nodes.values() if node.route is not None]


def differences(ours: object, reference: object, leaveOut: Container[str] = ()) -> Iterator[str]:
    if isinstance(ours, dict) and isinstance(reference, dict):
        for name, value in ours.items():
            if value != reference[name] and name not in leaveOut:
                yield f"{name} is {value}, ibsim's {reference[name]}"
    elif ours != reference:
        yield f"{ours}, ibsim: {reference}"


async def _outcome(call: Deferred[Any]) -> object:
    try:
        reported = await call
    except MADError as error:
        return f"status {error.status:#06x}"
    except MADFailure:
        return "no answer"
    return reported.toDict() if isinstance(reported, Attribute) else reported


def managementQuestions(path: IBPath, isSwitch: bool, ports: int) -> Iterator[Question]:
    """Return all requests that a node may get."""

    def get(kind: type[Attribute], *modifiers: int) -> Iterator[Question]:
        for modifier in modifiers or (0,):
            yield "SubnGet", kind, path, modifier

    for kind in (smp.NodeInfo, smp.NodeDescription, smp.SwitchInfo, smp.GUIDInfo):
        yield from get(kind)
    yield from get(smp.PortInfo, *range(ports + 2), 0xFF)
    yield from get(smp.PKeyTable, 0, 1)
    yield from get(smp.VLArbitrationTable, 0, *(block << 16 for block in range(1, 6)))
    yield from get(smp.SLtoVLMappingTable, 0, 1)
    yield from get(smp.LinearForwardingTable, 0, 1, 9)
    yield from get(smp.MulticastForwardingTable, 0, 1)
    yield from get(smp.ExtendedPortInfo, 1)
    if isSwitch:
        yield from get(smp.PKeyTable, 1 << 16, 1 << 16 | 1)
        yield from get(smp.SLtoVLMappingTable, 0x0102, 0x0001)
        yield from get(smp.VLArbitrationTable, 1 << 16 | 1, 3 << 16 | 2)


class UnmanagedAnswersTests(AnswersMixin):
    net = TWO_SWITCHES

    async def test_everything(self) -> None:
        count = 0
        for route, node in await self.places():
            questions = managementQuestions(route, node.isSwitch, node.info.numPorts)
            count += await self.compare(questions)
        self.assertGreater(count, 60)


class MixedAnswersTests(UnmanagedAnswersTests):
    net = MIXED


class SlowAnswersTests(UnmanagedAnswersTests):
    net = SLOW


class SettingAnswersTests(AnswersMixin):
    net = TWO_SWITCHES

    async def test_tables(self) -> None:
        leaf = IBDRPath(drPath=(1,))
        for content, modifier in (
            (smp.PKeyTable(pkeys=(0xFFFF, 0x8001) + (0,) * 30), 0),
            (smp.PKeyTable(pkeys=(0x8001,) * 32), 3 << 16),
            (smp.SLtoVLMappingTable(vls=(1,) * 16), 0x0203),
            (smp.LinearForwardingTable(ports=bytes(range(8)) * 8), 9),
            (smp.MulticastForwardingTable(portMasks=(5,) * 32), 3),
        ):
            await self.compare(
                [("SubnSet", content, leaf, modifier), ("SubnGet", type(content), leaf, modifier)]
            )

    async def test_ports(self) -> None:
        """Ports store LIDs, keys of the subnet, states and link settings like those of ibsim."""
        host, leaf = IBDRPath(drPath=(1, 2)), IBDRPath(drPath=(1,))
        for path, port, values in (
            (host, 1, {"lid": LID(17), "masterSMLID": LID(3), "lmc": 2}),
            (leaf, 0, {"lid": LID(18), "masterSMLID": LID(3), "gidPrefix": 0xFE80 << 48}),
            (host, 1, {"portState": 3}),
            (leaf, 2, {"portState": 3}),
            (host, 1, {"portState": 4}),
            (leaf, 2, {"portState": 4}),
        ):
            now = await self.theirAgent.SubnGet(smp.PortInfo, path, port)
            fields = {field.name: getattr(now, field.name) for field in now.fields}
            fields |= {"portState": 0, "portPhysicalState": 0, **values}
            await self.compare(
                [("SubnSet", smp.PortInfo(**fields), path, port), ("SubnGet", smp.PortInfo, path, port)]
            )
