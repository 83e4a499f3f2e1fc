"""Property tests of sweeps, reports and file formats."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from twisted.trial.unittest import SynchronousTestCase

from txrdma.commands.errors import described as describedErrors
from txrdma.commands.formats.dot import dotText
from txrdma.commands.formats.ibnetdiscover import listing
from txrdma.commands.formats.snapshot import snapshotDict
from txrdma.commands.links import iblinkinfoLine, linkDict
from txrdma.error import InvalidRequest
from txrdma.fabric.chassis import chassis
from txrdma.fabric.differences import differences
from txrdma.fabric.discovery import Sweep
from txrdma.fabric.errorcounters import Counted, CounterReport, parseThresholds, Thresholds
from txrdma.fabric.health import findings, recordedManagers
from txrdma.fabric.model import described, Fabric
from txrdma.fabric.nodenames import NodeNames, parseNodeNames
from txrdma.fabric.sasweep import SASweep
from txrdma.fabric.slurm import slurmText
from txrdma.fabric.snapshots import dump, load
from txrdma.iba.types import GUID, LID
from txrdma.iba.verbs import NodeType
from txrdma.mad.agent import MADAgent
from txrdma.mad.layouts.sa import LinkRecord, NodeRecord, PortInfoRecord
from txrdma.mad.layouts.smp import NodeInfo, PortInfo
from txrdma.sim.clock import SimulatedClock
from txrdma.sim.fabric import SimulatedFabric
from txrdma.sim.netfabrics import netOf, readFabric
from txrdma.test.support.mad.administration import Administration
from txrdma.test.support.mad.simulated import TWO_SWITCHES, twoSwitches

NAMES = NodeNames()
ENOUGH = settings(deadline=None, max_examples=30)
LINES = TWO_SWITCHES.splitlines()
NODES = ("a", "b", "c", "d", "left", "right")


def swept(changes: list[tuple[str, int | None, int, int]]) -> Fabric:
    clock = SimulatedClock()
    fabric = SimulatedFabric(clock, twoSwitches(), isManaged=False)
    for name, number, place, value in changes:
        node = fabric.node(name)
        if number is None:
            where = place % len(node.info)
            node.info = node.info[:where] + bytes((value,)) + node.info[where + 1 :]
        else:
            port = node.ports[number % len(node.ports)]
            if port.info:
                port.info[place % len(port.info)] = value
    agent = MADAgent(clock, fabric.attach("a"), timeoutSeconds=0.1, retries=0)
    found: list[Any] = []
    Sweep(agent).run().addBoth(found.append)
    while not found and clock.calls:
        clock.advance(max(0.0, clock.calls[0].getTime() - clock.seconds()))
    agent.close()
    assert isinstance(found[0], Fabric), found
    return found[0]


class AnyFabricTests(SynchronousTestCase):
    @ENOUGH
    @given(
        st.lists(
            st.tuples(
                st.sampled_from(NODES), st.none() | st.integers(0, 8), st.integers(0, 63), st.integers(0, 255)
            ),
            max_size=12,
        )
    )
    def test_everything(self, changes: list[tuple[str, int | None, int, int]]) -> None:
        fabric = swept(changes)
        reported = json.loads(json.dumps(dump(fabric)))
        again = load(reported)
        self.assertEqual(dump(again), reported)
        self.assertEqual(differences(fabric, again), [])
        self.assertEqual(
            load(json.loads(json.dumps(snapshotDict(fabric, NAMES)))).nodes.keys(), fabric.nodes.keys()
        )
        for lines in (
            listing(fabric, NAMES, chassis(fabric)),
            dotText(fabric, NAMES),
            netOf(fabric, NAMES).text().splitlines(),
            slurmText(fabric, NAMES),
            described(fabric.problems),
            (f"{finding.where} {finding.text}" for finding in findings(fabric)),
            (f"{finding.where} {finding.text}" for finding in recordedManagers(fabric)),
            (iblinkinfoLine(port, NAMES) for port in fabric.ports()),
            map(str, differences(swept([]), fabric)),
        ):
            for line in lines:
                self.assertNotIn("\x1b", line)
        for port in fabric.ports():
            linkDict(port, NAMES)
        report = CounterReport([Counted(node, 0, {"portRcvErrors": 1}) for node in fabric.nodes.values()])
        self.assertTrue(list(describedErrors(report, NAMES, Thresholds(), withLinks=True)))
        self.assertEqual(len(fabric.ordered()), len(fabric.nodes))


SMALL = st.integers(0, 5)
NODE_RECORDS = st.builds(
    lambda lid, kind, ports, guid, port, number: NodeRecord(
        lid=LID(lid),
        nodeInfo=NodeInfo(
            nodeType=NodeType(kind),
            numPorts=ports,
            nodeGUID=GUID.fromInt(guid),
            portGUID=GUID.fromInt(port),
            localPortNum=number,
        ),
    ),
    *(SMALL, SMALL, SMALL | st.just(255), SMALL, SMALL, SMALL | st.just(255)),
)
LINK_RECORDS = st.builds(
    lambda one, port, other, otherPort: LinkRecord(
        fromLID=LID(one), fromPort=port, toLID=LID(other), toPort=otherPort
    ),
    *(SMALL, SMALL | st.just(255)) * 2,
)
PORT_RECORDS = st.builds(
    lambda lid, number, content: PortInfoRecord(
        endPortLID=LID(lid), portNum=number, portInfo=PortInfo.decode(content)
    ),
    *(SMALL, SMALL | st.just(255), st.binary(min_size=64, max_size=64)),
)


class AnyAdministrationTests(SynchronousTestCase):
    @ENOUGH
    @given(st.lists(NODE_RECORDS), st.lists(LINK_RECORDS), st.lists(PORT_RECORDS))
    def test_tables(self, nodes: list[Any], links: list[Any], ports: list[Any]) -> None:
        tables = {"NodeRecord": nodes, "LinkRecord": links, "PortInfoRecord": ports}
        done = SASweep(Administration(**tables)).run()
        fabric = self.successResultOf(done)
        self.assertEqual(len(fabric.nodes), len({record.nodeInfo.nodeGUID for record in nodes}))
        reported = json.loads(json.dumps(dump(fabric)))
        self.assertEqual(dump(load(reported)), reported)
        for lines in (listing(fabric, NAMES), dotText(fabric, NAMES), slurmText(fabric, NAMES)):
            self.assertIsNotNone(list(lines))
        findings(fabric)
        for port in fabric.ports():
            linkDict(port, NAMES)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20) | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


class AnyFileTests(SynchronousTestCase):
    slowBecause = "Hypothesis generates many files"

    @ENOUGH
    @given(st.data())
    def test_json(self, data: st.DataObject) -> None:
        reported = json.loads(json.dumps(dump(swept([]))))
        here: Any = reported
        while True:
            key = data.draw(st.sampled_from(list(here) if isinstance(here, dict) else range(len(here))))
            if not isinstance(here[key], (dict, list)) or not here[key] or data.draw(st.booleans()):
                break
            here = here[key]
        here[key] = data.draw(ANYTHING)
        try:
            fabric = load(reported)
        except ValueError:
            return
        self.assertEqual(dump(load(dump(fabric))), dump(fabric))

    @ENOUGH
    @given(ANYTHING)
    def test_otherJSON(self, reported: Any) -> None:
        self.assertRaises(ValueError, load, reported)

    @ENOUGH
    @given(st.lists(st.text(max_size=40) | st.from_regex(r'\s*0x[0-9a-f]{1,20} "?[a-z #"]*', fullmatch=True)))
    def test_names(self, lines: list[str]) -> None:
        try:
            parseNodeNames("\n".join(lines))
        except InvalidRequest:
            pass

    @ENOUGH
    @given(
        st.lists(
            st.text(max_size=40) | st.from_regex(r"(PortRcvErrors|VL15Dropped) *=.{0,9}", fullmatch=True)
        )
    )
    def test_thresholds(self, lines: list[str]) -> None:
        try:
            parseThresholds("\n".join(lines))
        except InvalidRequest:
            pass

    @ENOUGH
    @given(
        st.lists(
            st.tuples(st.integers(0, 30), st.text(max_size=30) | st.sampled_from(TWO_SWITCHES.splitlines()))
        )
    )
    def test_net(self, changes: list[tuple[int, str]]) -> None:
        lines = list(LINES)
        for place, line in changes:
            lines[place % len(lines)] = line
        try:
            fabric = readFabric("\n".join(lines))
        except ValueError:
            return
        text = netOf(fabric, NAMES).text()
        self.assertEqual(netOf(readFabric(text), NAMES).text(), text)
