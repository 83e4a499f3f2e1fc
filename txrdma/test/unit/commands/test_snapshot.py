"""Snapshots with tables: C{txrdma snapshot}, checks of its files, and simulations of them."""

from __future__ import annotations

import errno
import gzip
import json
import os
import re
from pathlib import Path
from typing import Any
from unittest.mock import patch

from txrdma.commands.common import session
from txrdma.commands.common.sweeping import recorded
from txrdma.fabric.snapshots import VERSION, writeRecording
from txrdma.iba.path import IBPath
from txrdma.iba.types import LID
from txrdma.mad.agent import MADAgent
from txrdma.mad.layouts.smp import MulticastForwardingTable, PKeyTable, SLtoVLMappingTable
from txrdma.mad.ports import openMADPort
from txrdma.sim.fabric.agents.pma import PerformanceManagementAgents
from txrdma.sim.fabric.agents.sma import SubnetManagementAgents
from txrdma.test.support.mad.commanding import NetFabricTestCase


class SnapshotTests(NetFabricTestCase):
    def taken(self) -> str:
        """Write a snapshot, and return the path of its file."""
        path = str(self.mktemp())
        self.assertIn("6 nodes, 7 links", self.printed("snapshot", path))
        return path

    def offline(self, name: str, *arguments: str, device: str = "") -> str:
        """Run a command without a fabric, and return its output."""
        output = self.output(name, *arguments, device=device)
        self.status, self.complaints = output.status or 0, output.errors
        return str(output.out)

    def spoil(self) -> None:
        """Add a fault of a link, of counters and of tables."""
        self.fabric.setCounters("b", 1, linkDownedCounter=3)
        self.fabric.port("c").info[31] = 1
        self.fabric.port("right", 1).info[31] = 1
        tables = {(SLtoVLMappingTable.attributeID, 0): bytes(8)}
        self.fabric.port("a", 1).tables = tables

    def test_check(self) -> None:
        """The check of a snapshot has the findings that the fabric had, with counters and tables."""
        self.spoil()
        self.fabric.linearOf(self.fabric.node("left"))[int(self.lid("c"))] = 0xFF
        path = self.taken()
        expected = self.printed("check")
        self.assertEqual(self.status, 1)
        for kind in ("width", "sl-to-vl", "unreachable-lid", "errors"):
            self.assertIn(f"{kind}: ", expected)
        self.assertEqual(self.offline("check", "--load", path), expected)
        self.assertEqual(self.status, 1)
        self.assertNotIn("errors: ", self.offline("check", "--load", path, "--no-errors"))
        self.assertNotIn("sl-to-vl: ", self.offline("check", "--load", path, "--no-tables"))

    def test_vendor(self) -> None:
        """Cables and adaptive routes are in a snapshot, and in its simulation."""
        self.fabric.haveModules()
        self.fabric.haveModule("left", 3, temperature=90 << 8)
        self.fabric.routeAdaptively("left", {int(self.lid("c")): (2, 3)})
        path = self.taken()
        expected = {name: self.printed(name) for name in ("check", "cables")}
        self.assertRegex(
            expected["check"], "module-hot: left .* port 3: .*\nunreachable-lid: c .* may be chosen"
        )
        serials = re.findall(r" (MT\w+) ", expected["cables"])
        self.assertEqual((len(serials), len(set(serials))), (14, 7))
        for name, output in expected.items():
            self.assertEqual(self.offline(name, "--load", path), output)
            self.assertEqual(self.offline(name, device=f"sim:{path}"), output)
        (c,) = self.offline("cables", "--load", path, "c").splitlines()[1:]
        self.assertIn("MT00100006001", c)
        plain = self.mktemp()
        self.printed("discover", "--save", plain)
        self.offline("cables", "--load", plain)
        self.assertIn("it has no tables", str(self.status))

    def test_silent(self) -> None:
        """A node that did not answer is also a finding of the snapshot."""
        self.fabric.silence("c")
        path = self.mktemp()
        self.printed("snapshot", path)
        self.assertEqual(self.status, 1)
        expected = self.printed("check")
        self.assertIn("unreachable: ", expected)
        self.assertEqual(self.offline("check", "--load", path), expected)

    def test_readers(self) -> None:
        """Commands that load snapshots read the compressed file."""
        path = self.taken()
        for name in ("nodes", "links", "discover"):
            self.assertEqual(self.offline(name, "--load", path), self.printed(name), name)
        self.assertEqual((self.offline("diff", path, path), self.status), ("", 0))

    def test_answers(self) -> None:
        """Commands that query tables and counters take them from the file, and open no port."""
        self.spoil()
        path = self.taken()
        for name, *arguments in (
            ("trace", "b", "c"),
            ("trace", self.lid("b"), "--json"),
            ("trace", "--multicast", "0xc000"),
            ("routes",),
            ("routes", "-M"),
            ("routes", "--balance"),
            ("routes", "left", "--over", "3"),
            ("errors",),
            ("blast-radius", "left:3", "--json"),
        ):
            live = self.printed(name, *arguments)
            complaints = self.complaints
            self.patch(session, "openMADPort", self.fail)
            offline = self.offline(name, *arguments, "--load", path)
            self.patch(session, "openMADPort", openMADPort)
            self.assertEqual((offline, self.complaints), (live, complaints), (name, arguments))

    def test_unread(self) -> None:
        """What a snapshot lacks because a switch did not answer is not shown as if it had been read."""
        whole, path = self.taken(), self.mktemp()
        target = self.lid("c")

        def answer(agents: Any, port: Any, datagram: bytes) -> Any:
            isTable = int.from_bytes(datagram[16:18], "big") in (0x19, 0x1B)
            return None if isTable and port.node.identifier == "right" else plain(agents, port, datagram)

        def count(agents: Any, port: Any, datagram: bytes) -> Any:
            return None if port.node.identifier == "c" else plainly(agents, port, datagram)

        plain, plainly = SubnetManagementAgents.answer, PerformanceManagementAgents.answer
        self.patch(SubnetManagementAgents, "answer", answer)
        self.patch(PerformanceManagementAgents, "answer", count)
        self.printed("snapshot", path)
        self.assertEqual(self.status, 1)
        text = "incomplete at the snapshot: LinearForwardingTable: 1 requests without an answer"
        self.assertIn(text, self.complaints)
        for words, unknown in (
            (("trace", "a", "c"), "the forwarding table of right (LID "),
            (("trace", "-m", "0xc000", "right"), "a branch of 0xc000 is unknown"),
        ):
            self.offline(*words, "--load", path)
            self.assertIn(unknown, str(self.status))
        self.assertIn("To ca", self.offline("trace", "a", "c", "--load", whole))
        for option in ("--all", "-M", "--balance"):
            reported = json.loads(self.offline("routes", option, "--load", path, "--json"))
            self.assertEqual([each["name"] for each in reported], ["left"], option)
            self.assertEqual(self.status, 1)
        self.offline("blast-radius", "left:3", "--load", path)
        self.assertIn("the tables of 1 switches are unknown", self.complaints)
        self.assertEqual(self.status, 1)
        reported = json.loads(self.offline("errors", "--load", path, "--json"))
        self.assertEqual([each["name"] for each in reported["silent"]], ["c"])
        self.assertEqual(self.status, 1)
        self.assertIn("excludes", self.refusedOptions("trace", target, "--load", path))

    def test_impossibleBlock(self) -> None:
        """A block of a forwarding table beyond all LIDs is ignored."""
        path = Path(self.taken())
        document: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))
        for blocks in document["answers"]["SubnGet LinearForwardingTable"].values():
            blocks[str(1 << 40)] = blocks["0"]
        path.write_bytes(gzip.compress(json.dumps(document).encode()))
        self.assertIn("To ca", self.offline("trace", "b", "c", "--load", str(path)))

    def test_noAnswers(self) -> None:
        """A path cannot be traced in a file that has no tables."""
        path = self.mktemp()
        self.printed("discover", "--save", path)
        self.offline("trace", "b", "c", "--load", path)
        self.assertIn("it has no tables", str(self.status))

    def test_twin(self) -> None:
        """Commands show the same of the simulation of a snapshot as of the fabric."""
        self.spoil()
        agent = MADAgent(self.clock, self.fabric.attach("a"))
        self.addCleanup(agent.close)
        for name, mask in (("left", 0b1010), ("right", 0b1110)):
            content = MulticastForwardingTable(portMasks=(mask, *(0,) * 31))
            agent.SubnSet(content, IBPath(dlid=LID(int(self.lid(name)))))
        keys = PKeyTable(pkeys=(0xFFFF, 0x8001, *(0,) * 30))
        agent.SubnSet(keys, IBPath(dlid=LID(int(self.lid("c")))))
        self.pump(1)
        path = self.taken()
        twin = f"sim:{path}"
        for name, *arguments in (
            ("discover", "--json"),
            ("check",),
            ("errors",),
            ("routes",),
            ("routes", "-M"),
            ("trace", "--multicast", "0xc000"),
            ("trace", self.lid("b")),
            ("smpquery", "PKeys", self.lid("c")),
        ):
            live = self.printed(name, *arguments)
            self.assertEqual(self.offline(name, *arguments, device=twin), live, (name, arguments))

    def test_versions(self) -> None:
        """A file of a later version is refused, with the reason; so is a damaged one."""
        path = Path(self.taken())
        document: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))
        self.assertEqual(document["version"], VERSION)
        path.write_bytes(gzip.compress(json.dumps({**document, "version": VERSION + 1}).encode()))
        self.offline("check", "--load", str(path))
        self.assertIn(f"reads versions up to {VERSION}", str(self.status))
        self.offline("nodes", device=f"sim:{path}")
        self.assertIn(f"reads versions up to {VERSION}", str(self.status))
        for name, value in (("answers", 7), ("port", {}), ("at", "today")):
            path.write_text(json.dumps({**document, name: value}))
            self.offline("check", "--load", str(path))
            self.assertIn(f"snapshot {path}", str(self.status))
        path.write_bytes(b"\x1f\x8b damaged")
        self.offline("check", "--load", str(path))
        self.assertIn(f"snapshot {path}", str(self.status))

    def test_together(self) -> None:
        """Two processes that write the same file at once do not write into each other's."""
        folder = Path(self.mktemp())
        folder.mkdir()
        path = folder / "site"
        self.printed("snapshot", str(path))
        recording = recorded(str(path))
        plain, content = os.replace, path.read_bytes()

        def replace(part: Any, where: Any) -> None:
            with patch.object(os, "replace", plain):
                with patch.object(gzip, "compress", return_value=b"another"):
                    writeRecording(recording, where)
            self.assertEqual(path.read_bytes(), b"another")
            plain(part, where)

        self.patch(os, "replace", replace)
        writeRecording(recording, str(path))
        self.assertEqual(path.read_bytes(), content)
        self.assertEqual(list(folder.iterdir()), [path])

    def test_kept(self) -> None:
        """A file that cannot be replaced keeps its content; so does the link to it."""
        folder = Path(self.mktemp())
        folder.mkdir()
        path, link = folder / "site", folder / "link"
        link.symlink_to("site")
        for command in (("snapshot", str(link)), ("discover", "--save", str(link))):
            with self.subTest(command[0]):
                self.printed(*command)
                content = path.read_bytes()
                with patch.object(os, "replace", side_effect=OSError(errno.ENOSPC, "No space left")):
                    self.printed(*command)
                self.assertIn("No space left", str(self.status))
                self.assertEqual((path.read_bytes(), sorted(folder.iterdir())), (content, [link, path]))
                self.assertTrue(link.is_symlink())

    def test_pipe(self) -> None:
        """A snapshot can be written to a pipe, which is not replaced."""
        read, write = os.pipe()
        with open(read, "rb") as reader:
            with open(write, "wb"):
                self.printed("discover", "--save", f"/dev/fd/{write}")
            self.assertEqual(len(json.load(reader)["nodes"]), 6)

    def test_interrupted(self) -> None:
        """Ctrl-C while the file is written leaves neither it nor a part of it."""
        folder = Path(self.mktemp())
        folder.mkdir()

        def interrupted(part: Path, file: str) -> None:
            raise SystemExit(130)

        self.patch(os, "replace", interrupted)
        self.printed("snapshot", str(folder / "site"))
        self.assertEqual((self.status, list(folder.iterdir())), (130, []))

    def test_mistakes(self) -> None:
        self.assertIn("expected FILE", self.refusedOptions("snapshot"))
        self.assertIn("--load", self.refusedOptions("snapshot", "--load", "a", "b"))
        self.printed("snapshot", "/nonexistent/file")
        self.assertIn("/nonexistent/file", str(self.status))
