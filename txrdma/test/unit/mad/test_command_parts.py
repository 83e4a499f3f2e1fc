"""
Commands about one node of a fabric, and what is around it: C{nodes}, C{links} and C{errors} with a TARGET.
"""

from __future__ import annotations

from typing import Any

from twisted.python.usage import UsageError

from txrdma.test.support.mad.commanding import Said, SharedFabricTestCase
from txrdma.test.unit.mad.test_sweeping_commands import NO_DEVICE


class PartCase(SharedFabricTestCase):
    """
    Two levels of switches.

    @ivar asked: datagrams that the last command has sent.
    """

    device = "sim:fattree:128"

    def setUp(self) -> None:
        super().setUp()
        self.asked = 0

    def said(self, name: str, *arguments: str, device: str | None = None) -> Said:
        before = self.fabric.wire.datagrams
        try:
            return super().said(name, *arguments, device=device)
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

    def kept(self) -> str:
        path: str = self.mktemp()
        super().said("nodes", "--save", path)
        return path


class LinksTests(PartCase):
    def test_spelled(self) -> None:
        for name, route in (("leaf0001", "0,1,19,3"), ("h00020", "0,1,19,3,3"), ("h00000", "DR 0")):
            whole = super().said("links", "--json").json
            own = {frozenset(key(link)) for link in whole if name in names(link)}
            path = self.kept()
            for target in self.spellings(name, route):
                said = self.said("links", target, "--json")
                self.assertEqual((said.errors, said.status), ("", None))
                self.assertEqual({frozenset(key(link)) for link in said.json}, own, target)
                self.assertEqual({link["from"]["name"] for link in said.json}, {name})
                again = self.said("links", target, "--json", "--load", path, device=NO_DEVICE)
                self.assertEqual(again.json, said.json, target)
            self.assertEqual(len(own), 36 if name == "leaf0001" else 1)

    def test_combined(self) -> None:
        lid = self.fabric.port("leaf0001").end.lid
        for more in ([], ["--load", self.kept()]):
            [link] = self.said("links", f"{lid} 0,3", "--json", *more).json
            self.assertEqual((link["from"]["name"], link["to"]["name"]), ("h00020", "leaf0001"))

    def test_asked(self) -> None:
        self.said("links")
        whole = self.asked
        self.said("links", "20")
        self.assertLess(self.asked, 12)
        self.said("links", "leaf0001")
        self.assertLess(self.asked, 40 + 6 * 36)
        self.assertLess(self.asked, whole / 3)

    def test_hops(self) -> None:
        said = self.said("links", "h00020", "--hops", "1", "--json").json
        self.assertEqual(len(said), 36)
        self.assertTrue(all("leaf0001" in names(link) for link in said))
        told = self.said("links", "leaf0001", "--hops", "1", "--json").json
        whole = {frozenset(key(link)) for link in self.said("links", "--json").json}
        spines = {
            link for link in whole if any("spine" in str(end) or "leaf0001" in str(end) for end in link)
        }
        self.assertEqual({frozenset(key(link)) for link in told}, spines)
        self.assertEqual(len(told), len(spines))
        path = self.kept()
        again = self.said("links", "leaf0001", "--hops=1", "--json", "--load", path, device=NO_DEVICE)
        self.assertEqual(again.json, told)

    def test_saved(self) -> None:
        path = self.mktemp()
        told = self.said("links", "0x0000000000100029", "--json", "--save", path).json
        self.assertEqual(self.said("links", "h00020", "--load", path, "--json", device=NO_DEVICE).json, told)
        self.assertEqual([link["from"]["name"] for link in told], ["h00020"])

    def test_mistakes(self) -> None:
        for more in ([], ["--load", self.kept()]):
            for target in ("h99999", "4000", "fe80::99", "DR 0,9", "0x0123456789abcdef"):
                said = self.said("links", target, "-t.1", *more)
                self.assertTrue(said.status, (target, more))
                self.assertNotIn("h00", said.out)
        for words in (["1", "2"], ["1", "--from", "0,1"]):
            self.assertRaises(UsageError, self.said, "links", *words)
        self.fabric.node("h00001").description = "h00020"
        self.assertIn("several", str(self.said("links", "h00020", "--load", self.kept()).status))


class ErrorsTests(PartCase):
    def setUp(self) -> None:
        super().setUp()
        for name, number in (("leaf0001", 3), ("h00020", 1), ("h00021", 1), ("leaf0002", 4)):
            self.fabric.setCounters(name, number, portXmitDiscards=7)

    def bad(self, *arguments: str) -> list[tuple[str, int]]:
        told = self.said("errors", *arguments, "--json").json
        return [(port["name"], port["port"]) for port in told["ports"] if port["port"] is not None]

    def test_one(self) -> None:
        for target in self.spellings("leaf0001", "0,1,19,3"):
            self.assertEqual(self.bad(target), [("leaf0001", 3)])
            self.assertLess(self.asked, 36 + 20)
        for target in self.spellings("h00020", "0,1,19,3,3"):
            self.assertEqual(self.bad(target), [("h00020", 1)])
            self.assertLess(self.asked, 12)
        said = self.said("errors", "leaf0003")
        self.assertIn("## Summary: 1 nodes checked, 0 bad nodes found\n", said.out)
        self.assertIn("36 ports checked", said.out)
        self.assertEqual(said.status, None)
        self.assertLess(self.asked, 12)

    def test_hops(self) -> None:
        self.assertEqual(self.bad("h00020", "--hops=1"), [("leaf0001", 3), ("h00020", 1)])
        self.assertEqual(self.bad("leaf0001", "--hops=1"), [("leaf0001", 3), ("h00020", 1), ("h00021", 1)])
        self.assertEqual(len(self.bad()), 4)

    def test_loaded(self) -> None:
        self.assertEqual(self.bad("h00020", "--hops=1", "--load", self.kept())[1:], [("h00020", 1)])

    def test_clear(self) -> None:
        said = self.said("errors", "h00020", "--clear")
        self.assertIn("clear the counters of errors of the ports of h00020: this", str(said.status))
        said = self.said("errors", "h00020", "--hops=2", "--clear")
        self.assertIn("of h00020 and all nodes 2 hops around it", str(said.status))
        self.bad("h00020", "--clear", "--yes")
        self.assertEqual(self.bad(), [("leaf0001", 3), ("leaf0002", 4), ("h00021", 1)])


def key(link: Any) -> list[str]:
    return [f"{end['name']} {end['port']}" for end in (link["from"], link["to"])]


def names(link: Any) -> list[str]:
    return [link["from"]["name"], link["to"]["name"]]
