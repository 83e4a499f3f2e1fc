"""
C{txrdma trace} and C{txrdma routes}: what infiniband-diags has besides the plain cases, and trace records.
"""

from __future__ import annotations

from twisted.python.usage import UsageError

from txrdma.command import Options
from txrdma.iba.types import GID
from txrdma.mad.errors import MADRefusal
from txrdma.mad.layouts.attributes import Method
from txrdma.mad.layouts.messages import ClassPortInfo, MADRequest, MADStatus
from txrdma.mad.layouts.sa import PathRecord, TraceRecord
from txrdma.sim.fabric.sm import sa
from txrdma.sim.fabric.sm.sa import SubnetAdministration
from txrdma.test.support.mad.commanding import SharedFabricTestCase


class FabricTestCase(SharedFabricTestCase):
    device = "sim:fattree:40"

    def lid(self, name: str) -> int:
        return int(self.fabric.port(name).end.lid)


class TraceTests(FabricTestCase):
    def test_branch(self) -> None:
        joining = ("saquery", "MCMR", "mgid=ff12:401b:ffff::ffff:ffff", "joinState=1", "--set", "--yes")
        for name in ("h00000", "h00020", "h00039"):
            gid = f"portGID={GID.fromParts(0xFE80 << 48, self.fabric.port(name).guid)}"
            self.assertEqual(self.said(*joining, gid).status, None)
        told = self.said("trace", "-m", "0xc000", "1", "40", "--json").json
        names = [hop["name"] for hop in told["hops"]]
        self.assertEqual((names[0], names[1], names[-1], len(names)), ("h00000", "leaf0000", "h00039", 5))
        self.assertEqual([hop["parent"] for hop in told["hops"]], [None, 0, 1, 2, 3])
        text = self.said("trace", "-m", "0xc000", "1", "40").out.splitlines()
        self.assertEqual((len(text), text[-1][:5]), (6, "To ca"))
        said = self.said("trace", "-m", "0xc000", "1", "5")
        self.assertEqual(said.status, "txrdma trace: a packet for 0xc000 does not come to LID 5")


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

    def test_told(self) -> None:
        lines = self.said("trace", "--sa", "1", "40").out.splitlines()
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
        told = self.said("trace", "--sa", "1", "40", "--json").json
        self.assertEqual((len(told["hops"]), self.asked), (5, [(1, 40)]))

    def test_strange(self) -> None:
        self.patch(self, "records", lambda path: [TraceRecord(nodeID=1), TraceRecord(nodeID=2)])
        told = self.said("trace", "--sa", "1", "40", "--json").json
        self.assertEqual([hop["type"] for hop in told["hops"]].count("SWITCH"), 3)


class RoutesTests(FabricTestCase):
    def test_over(self) -> None:
        leaf, link = str(self.lid("leaf0000")), 20
        peer = self.fabric.port("leaf0000", link).neighbor
        assert peer is not None
        told = self.said("routes", leaf, "--over", str(link), "--json").json
        away, back = told
        self.assertEqual((away["from"]["name"], away["from"]["port"]), ("leaf0000", link))
        self.assertEqual((back["from"]["name"], back["from"]["port"]), (peer.node.description, peer.number))
        table = self.said("routes", leaf, "--port", str(link), "--json").json[0]["linear"]
        hosts = [entry["lid"] for entry in table if "Channel Adapter" in entry["destination"]]
        self.assertEqual([each["lid"] for each in away["reached"]], hosts)
        self.assertEqual({each["name"] for each in back["reached"]} & {"h00039"}, set())
        other = self.said(
            "routes", str(self.lid(peer.node.description)), "--over", str(peer.number), "--json"
        )
        self.assertEqual(other.json, [back, away])
        text = self.said("routes", leaf, "--over", str(link)).out
        self.assertIn(f"Over leaf0000 port {link} to {peer.node.description} port {peer.number}", text)

    def test_host(self) -> None:
        told = self.said("routes", str(self.lid("leaf0000")), "--over", "3", "--json").json
        self.assertEqual([[end["name"] for end in each["reached"]] for each in told], [["h00002"]])

    def test_balance(self) -> None:
        """How many LIDs each switch sends by its links to others, and whether that is even."""
        told = {each["name"]: each for each in self.said("routes", "--balance", "--json").json}
        leaf = told["leaf0000"]
        table = self.said("routes", str(self.lid("leaf0000")), "--json").json[0]["linear"]
        [group] = leaf["groups"]
        self.assertEqual([each["port"] for each in group], list(range(19, 37)))
        for each in group:
            reached = [e for e in table if e["port"] == each["port"] and "Channel" in e["destination"]]
            self.assertEqual(each["lids"], len(reached))
        self.assertEqual((leaf["isEven"], leaf["longer"]), (True, 0))
        self.assertEqual(
            [[each["port"] for each in group] for group in told["spine0000"]["groups"]],
            [[1, 2], [3, 4], [5, 6]],
        )
        text = self.said("routes", "--balance").out
        self.assertEqual(len(text.splitlines()), 1 + len(told))

    def test_unbalanced(self) -> None:
        table = self.fabric.linearOf(self.fabric.node("leaf0000"))
        for lid in (37, 38, 39, 40):
            table[lid] = 19
        table[30] = 5
        told = {each["name"]: each for each in self.said("routes", "--balance", "--json").json}
        leaf = told["leaf0000"]
        self.assertEqual((leaf["isEven"], leaf["longer"]), (False, 1))
        self.assertRegex(self.said("routes", "--balance").out, r"leaf0000 .* uneven: 19:\d")

    def test_mistakes(self) -> None:
        for arguments in (["--over", "1"], ["3", "--balance"], ["41", "--over", "1", "--multicast"]):
            self.assertRaises(UsageError, Options().parseOptions, ["routes", *arguments])
        said = self.said("routes", str(self.lid("leaf0000")), "--over", "99")
        self.assertIn("port 99 of 41 has no link", str(said.status))
