"""Commands about parts of a fabric: C{nodes}, C{links}, C{errors} with a TARGET, C{trace} and C{routes}."""

from __future__ import annotations

from typing import Any

from twisted.python.usage import UsageError

from txrdma.command import TxrdmaOptions
from txrdma.iba.types import GID
from txrdma.mad.errors import MADRefusal
from txrdma.mad.layouts.attributes import Method
from txrdma.mad.layouts.messages import ClassPortInfo, MADRequest, MADStatus
from txrdma.mad.layouts.sa import LinkRecord, PathRecord, TraceRecord
from txrdma.mad.layouts.values import SAStatus
from txrdma.sim.fabric.sm import sa
from txrdma.sim.fabric.sm.sa import SubnetAdministration
from txrdma.test.support.mad.commanding import Output, SharedFabricTestCase
from txrdma.test.unit.commands.test_sweeping import NO_DEVICE


class PartCase(SharedFabricTestCase):
    """
    Two levels of switches.

    @ivar asked: number of datagrams that the last command has sent.
    """

    device = "sim:fattree:128"

    def setUp(self) -> None:
        super().setUp()
        self.asked = 0

    def output(self, name: str, *arguments: str, device: str | None = None) -> Output:
        before = self.fabric.wire.datagrams
        try:
            return super().output(name, *arguments, device=device)
        finally:
            self.asked = self.fabric.wire.datagrams - before

    def spellings(self, name: str, route: str) -> list[str]:
        port = self.fabric.port(name)
        guid = port.end.guid
        gid = f"fe80::{int(guid) >> 16:x}:{int(guid) & 0xFFFF:x}"
        lid = port.end.lid
        return [
            str(lid),
            f"lid {lid}",
            f"0x{guid.raw.hex()}",
            gid,
            name,
            route,
            f"DR {route.removeprefix('DR ')}",
        ]

    def savedFabric(self) -> str:
        path: str = self.mktemp()
        super().output("nodes", "--save", path)
        return path


class LinksTests(PartCase):
    def test_spelled(self) -> None:
        whole = super().output("links", "--json").json
        path = self.savedFabric()
        for name, route in (("leaf0001", "0,1,19,3"), ("h00020", "0,1,19,3,3"), ("h00000", "DR 0")):
            own = {frozenset(key(link)) for link in whole if name in names(link)}
            for target in self.spellings(name, route):
                output = self.output("links", target, "--json")
                self.assertEqual((output.errors, output.status), ("", None))
                self.assertEqual({frozenset(key(link)) for link in output.json}, own, target)
                self.assertEqual({link["from"]["name"] for link in output.json}, {name})
                again = self.output("links", target, "--json", "--load", path, device=NO_DEVICE)
                self.assertEqual(again.json, output.json, target)
            self.assertEqual(len(own), 36 if name == "leaf0001" else 1)

    def test_combined(self) -> None:
        lid = self.fabric.port("leaf0001").end.lid
        for more in ([], ["--load", self.savedFabric()]):
            [link] = self.output("links", f"{lid} 0,3", "--json", *more).json
            self.assertEqual((link["from"]["name"], link["to"]["name"]), ("h00020", "leaf0001"))

    def test_asked(self) -> None:
        self.output("links")
        whole = self.asked
        self.output("links", "20")
        self.assertLess(self.asked, 12)
        self.output("links", "leaf0001")
        self.assertLess(self.asked, 40 + 6 * 36)
        self.assertLess(self.asked, whole / 3)

    def test_saved(self) -> None:
        path = self.mktemp()
        reported = self.output("links", "0x0000000000100029", "--json", "--save", path).json
        self.assertEqual(
            self.output("links", "h00020", "--load", path, "--json", device=NO_DEVICE).json, reported
        )
        self.assertEqual([link["from"]["name"] for link in reported], ["h00020"])

    def test_mistakes(self) -> None:
        for more in ([], ["--load", self.savedFabric()]):
            for target in ("h99999", "4000", "fe80::99", "DR 0,9", "0x0123456789abcdef"):
                output = self.output("links", target, "-t.1", *more)
                self.assertTrue(output.status, (target, more))
                self.assertNotIn("h00", output.out)
        for words in (["1", "2"], ["1", "--from", "0,1"]):
            self.assertRaises(UsageError, self.output, "links", *words)
        self.fabric.node("h00001").description = "h00020"
        self.assertIn("several", str(self.output("links", "h00020", "--load", self.savedFabric()).status))


class ErrorsTests(PartCase):
    def setUp(self) -> None:
        super().setUp()
        for name, number in (("leaf0001", 3), ("h00020", 1), ("h00021", 1), ("leaf0002", 4)):
            self.fabric.setCounters(name, number, portXmitDiscards=7)

    def bad(self, *arguments: str) -> list[tuple[str, int]]:
        reported = self.output("errors", *arguments, "--json").json
        return [(port["name"], port["port"]) for port in reported["ports"] if port["port"] is not None]

    def test_one(self) -> None:
        for target in self.spellings("leaf0001", "0,1,19,3"):
            self.assertEqual(self.bad(target), [("leaf0001", 3)])
            self.assertLess(self.asked, 36 + 20)
        for target in self.spellings("h00020", "0,1,19,3,3"):
            self.assertEqual(self.bad(target), [("h00020", 1)])
            self.assertLess(self.asked, 12)
        output = self.output("errors", "leaf0003")
        self.assertIn("## Summary: 1 nodes checked, 0 bad nodes found\n", output.out)
        self.assertIn("36 ports checked", output.out)
        self.assertEqual(output.status, None)
        self.assertLess(self.asked, 12)

    def test_hops(self) -> None:
        self.assertEqual(self.bad("h00020", "--hops=1"), [("leaf0001", 3), ("h00020", 1)])
        self.assertEqual(self.bad("leaf0001", "--hops=1"), [("leaf0001", 3), ("h00020", 1), ("h00021", 1)])
        self.assertEqual(len(self.bad()), 4)

    def test_loaded(self) -> None:
        self.assertEqual(self.bad("h00020", "--hops=1", "--load", self.savedFabric())[1:], [("h00020", 1)])

    def test_clear(self) -> None:
        output = self.output("errors", "h00020", "--clear")
        self.assertIn("clear the counters of errors of the ports of h00020: this", str(output.status))
        output = self.output("errors", "h00020", "--hops=2", "--clear")
        self.assertIn("of h00020 and all nodes 2 hops around it", str(output.status))
        self.bad("h00020", "--clear", "--yes")
        self.assertEqual(self.bad(), [("leaf0001", 3), ("leaf0002", 4), ("h00021", 1)])


def key(link: Any) -> list[str]:
    return [f"{end['name']} {end['port']}" for end in (link["from"], link["to"])]


def names(link: Any) -> list[str]:
    return [link["from"]["name"], link["to"]["name"]]


class FabricTestCase(SharedFabricTestCase):
    device = "sim:fattree:40"

    def lid(self, name: str) -> int:
        return int(self.fabric.port(name).end.lid)


class TraceTests(FabricTestCase):
    def test_branch(self) -> None:
        joining = ("saquery", "MCMR", "mgid=ff12:401b:ffff::ffff:ffff", "joinState=1", "--set", "--yes")
        for name in ("h00000", "h00020", "h00039"):
            gid = f"portGID={GID.fromParts(0xFE80 << 48, self.fabric.port(name).guid)}"
            self.assertEqual(self.output(*joining, gid).status, None)
        reported = self.output("trace", "-m", "0xc000", "1", "40", "--json").json
        names = [hop["name"] for hop in reported["hops"]]
        self.assertEqual((names[0], names[1], names[-1], len(names)), ("h00000", "leaf0000", "h00039", 5))
        self.assertEqual([hop["parent"] for hop in reported["hops"]], [None, 0, 1, 2, 3])
        text = self.output("trace", "-m", "0xc000", "1", "40").out.splitlines()
        self.assertEqual((len(text), text[-1][:5]), (6, "To ca"))
        output = self.output("trace", "-m", "0xc000", "1", "5")
        self.assertEqual(output.status, "txrdma trace: a packet for 0xc000 does not reach LID 5")


class TraceRecordTests(FabricTestCase):
    def setUp(self) -> None:
        self.patch(sa, "_METHODS", (*sa._METHODS, Method.GET_TRACE_TABLE))
        handle = SubnetAdministration.handle
        self.hides = False

        def traced(administration: SubnetAdministration, request: MADRequest) -> object:
            if request.header.method is Method.GET_TRACE_TABLE:
                return self.records(PathRecord.decode(request.data.ljust(64, b"\0")))
            answer = handle(administration, request)
            if isinstance(answer, ClassPortInfo):
                return answer.replace(capabilityMask=answer.capabilityMask | 1 << 8)
            return answer

        self.patch(SubnetAdministration, "handle", traced)
        super().setUp()
        self.asked: list[tuple[int, int]] = []

    def records(self, path: PathRecord) -> list[TraceRecord]:
        self.asked.append((path.slid, path.dlid))
        if self.hides:
            raise MADRefusal(MADStatus.UNSUPPORTED_METHOD_ATTRIBUTE)
        names = ("h00000", "leaf0000", "spine0008", "leaf0002", "h00039")
        ports = ((0, 1), (1, 36), (1, 5), (35, 4), (1, 0))
        return [
            TraceRecord(nodeID=int(self.fabric.node(name).guid), entryPort=entry, exitPort=out)
            for name, (entry, out) in zip(names, ports, strict=True)
        ]

    def test_hops(self) -> None:
        lines = self.output("trace", "--sa", "1", "40").out.splitlines()
        self.assertEqual(self.asked, [(1, 40)])
        self.assertTrue(lines[0].startswith("Path record: LID 1 to 40"))
        guids = [f"0x{self.fabric.port(name).guid.raw.hex()}" for name in ("leaf0000", "spine0008")]
        self.assertEqual(
            lines[2:4],
            [
                f'[1] -> switch port {{{guids[0]}}}[1] lid 41-41 "leaf0000"',
                f'[36] -> switch port {{{guids[1]}}}[1] lid 52-52 "spine0008"',
            ],
        )
        self.assertTrue(lines[-1].startswith("To ca {0x000000000010004e} portnum 1 lid 40-40"))

    def test_refused(self) -> None:
        self.hides = True
        reported = self.output("trace", "--sa", "1", "40", "--json").json
        self.assertEqual((len(reported["hops"]), self.asked), (5, [(1, 40)]))

    def test_incomplete(self) -> None:
        """Records that do not lead to the target are no path to it."""
        records = self.records
        self.patch(self, "records", lambda path: records(path)[:-1])
        output = self.output("trace", "--sa", "1", "40", "--json")
        self.assertFalse(output.json["reached"])
        self.assertEqual(len(output.json["hops"]), 4)
        self.assertIn("the SA's trace from LID 1 to LID 40 leads from LID 1 to LID 43", str(output.status))

    def test_noResources(self) -> None:
        """An error of the SA does not mean that a link does not exist."""
        self.hides = True
        handle = SubnetAdministration.handle

        def busy(administration: SubnetAdministration, request: MADRequest) -> object:
            if request.header.attributeID == LinkRecord.attributeID:
                raise MADRefusal(SAStatus.NO_RESOURCES)
            return handle(administration, request)

        self.patch(SubnetAdministration, "handle", busy)
        output = self.output("trace", "--sa", "1", "40", "--json")
        self.assertIn("what is behind port 1 of h00000 (LID 1) is unknown", output.json["reason"])

    def test_strange(self) -> None:
        self.patch(self, "records", lambda path: [TraceRecord(nodeID=1), TraceRecord(nodeID=2)])
        reported = self.output("trace", "--sa", "1", "40", "--json").json
        self.assertEqual([hop["type"] for hop in reported["hops"]].count("SWITCH"), 3)


class RoutesTests(FabricTestCase):
    def test_over(self) -> None:
        leaf, link = str(self.lid("leaf0000")), 20
        peer = self.fabric.port("leaf0000", link).neighbor
        assert peer is not None
        reported = self.output("routes", leaf, "--over", str(link), "--json").json
        away, back = reported
        self.assertEqual((away["from"]["name"], away["from"]["port"]), ("leaf0000", link))
        self.assertEqual((back["from"]["name"], back["from"]["port"]), (peer.node.description, peer.number))
        table = self.output("routes", leaf, "--port", str(link), "--json").json[0]["linear"]
        hosts = [entry["lid"] for entry in table if "Channel Adapter" in entry["destination"]]
        self.assertEqual([each["lid"] for each in away["reached"]], hosts)
        self.assertEqual({each["name"] for each in back["reached"]} & {"h00039"}, set())
        other = self.output(
            "routes", str(self.lid(peer.node.description)), "--over", str(peer.number), "--json"
        )
        self.assertEqual(other.json, [back, away])
        text = self.output("routes", leaf, "--over", str(link)).out
        self.assertIn(f"Over leaf0000 port {link} to {peer.node.description} port {peer.number}", text)

    def test_unbalanced(self) -> None:
        table = self.fabric.linearOf(self.fabric.node("leaf0000"))
        for lid in (37, 38, 39, 40):
            table[lid] = 19
        table[30] = 5
        reported = {each["name"]: each for each in self.output("routes", "--balance", "--json").json}
        leaf = reported["leaf0000"]
        self.assertEqual((leaf["isEven"], leaf["longer"]), (False, 1))
        self.assertRegex(self.output("routes", "--balance").out, r"leaf0000 .* uneven: 19:\d")

    def test_mistakes(self) -> None:
        for arguments in (["--over", "1"], ["3", "--balance"], ["41", "--over", "1", "--multicast"]):
            self.assertRaises(UsageError, TxrdmaOptions().parseOptions, ["routes", *arguments])
        output = self.output("routes", str(self.lid("leaf0000")), "--over", "99")
        self.assertIn("port 99 of 41 has no link", str(output.status))
