"""Physical networks: the table, the kernel's answers, and the port of each interface."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from twisted.trial.unittest import SynchronousTestCase

from txrdma.error import WireError
from txrdma.ports import pnet
from txrdma.ports.netlink import attributesOf, InterfaceAddress, NetlinkMessage, NetworkInterface
from txrdma.ports.pnet import changing, Networks, readText, writeText
from txrdma.ports.pnettable import (
    familyOf,
    familyRequest,
    networkOf,
    parseTable,
    PNETEntry,
    portFor,
    RDMAPort,
    tableOf,
    withEntry,
    withoutEntries,
)
from txrdma.test.support.sysfs import ROCE, SIW, SysFS

TEXT = """\
# the first network
NET1 eth0 mlx5_0/1   # both
net1 eth1

NET2 bond0.7 mlx5_1/2
"""

GID = "0000:0000:0000:0000:0000:ffff:0a00:0001"

names = st.text("ABCXYZ0189", min_size=1, max_size=16)
interfaces = st.builds("{}{}".format, st.sampled_from("abz"), st.text("az09.@-", max_size=14))
ports = st.builds("{}/{}".format, st.text("az09_", min_size=1, max_size=15), st.integers(1, 254))
entries = st.builds(PNETEntry, names, st.one_of(interfaces, ports))
tables = st.lists(entries, max_size=12, unique_by=lambda each: each.member).map(tuple)


def textOf(table: tuple[PNETEntry, ...]) -> str:
    """Return the text of a table, one line for each entry."""
    return "".join(f"{each.network} {each.member}\n" for each in table)


class TableTests(SynchronousTestCase):
    def test_parsed(self) -> None:
        """Names of networks are converted to upper case; comments and empty lines are ignored."""
        self.assertEqual(
            parseTable(TEXT),
            (
                PNETEntry("NET1", "eth0"),
                PNETEntry("NET1", "mlx5_0/1"),
                PNETEntry("NET1", "eth1"),
                PNETEntry("NET2", "bond0.7"),
                PNETEntry("NET2", "mlx5_1/2"),
            ),
        )

    def test_nonsense(self) -> None:
        """Invalid lines are reported with their number."""
        for text, why in (
            ("\nNET1\n", "line 2: there are no members of NET1"),
            ("NET-1 eth0", "line 1: 'NET-1' is not a network name"),
            ("N" * 17 + " eth0", "is not a network name"),
            ("NET1 mlx5_0/0", "line 1: 'mlx5_0/0' is neither"),
            ("NET1 a/b/1", "is neither"),
            ("NET1 " + "e" * 16, "is neither"),
            ("NET1 eth0\nNET2 eth0", "line 2: eth0 is in NET1 and in NET2"),
        ):
            error = self.assertRaises(ValueError, parseTable, text)
            self.assertIn(why, str(error))

    @settings(max_examples=25)
    @given(tables)
    def test_roundTrip(self, table: tuple[PNETEntry, ...]) -> None:
        """A formatted table is parsed to the same entries."""
        self.assertEqual(parseTable(textOf(table)), table)

    @settings(max_examples=25)
    @given(tables, entries)
    def test_added(self, table: tuple[PNETEntry, ...], entry: PNETEntry) -> None:
        """An entry is added once; it is refused if its member is in another network."""
        before = {each.member: each.network for each in table}
        text = textOf(table)
        if before.get(entry.member, entry.network) != entry.network:
            self.assertRaises(ValueError, withEntry, text, entry)
        else:
            added = withEntry(text, entry)
            self.assertEqual(set(parseTable(added)), {*table, entry})
            self.assertEqual(withEntry(added, entry), added)

    @settings(max_examples=25)
    @given(tables, st.data())
    def test_removed(self, table: tuple[PNETEntry, ...], data: Any) -> None:
        """Named entries are removed, and all others remain."""
        assume(table)
        network = data.draw(st.sampled_from(table)).network
        members = [each.member for each in table if each.network == network]
        gone = data.draw(st.lists(st.sampled_from(members), unique=True))
        left = parseTable(withoutEntries(textOf(table), network, gone))
        expected = [each for each in table if each.network != network or (gone and each.member not in gone)]
        self.assertEqual(list(left), expected)

    @given(st.text("NET1 #/\n\teth0mlx5_", max_size=60), entries)
    def test_anyText(self, text: str, entry: PNETEntry) -> None:
        """Any text is parsed or raises ValueError, also when an entry is added."""
        try:
            table = parseTable(text)
        except ValueError:
            self.assertRaises(ValueError, withEntry, text, entry)
            return
        self.assertEqual(parseTable(textOf(table)), table)

    def test_comments(self) -> None:
        """Removing an entry does not change comments and other lines."""
        self.assertEqual(withoutEntries(TEXT, "net1", ["eth1"]), TEXT.replace("net1 eth1\n", ""))
        self.assertEqual(
            withoutEntries(TEXT, "NET1", ["eth0"]),
            TEXT.replace("NET1 eth0 mlx5_0/1   # both", "NET1 mlx5_0/1 # both"),
        )
        self.assertEqual(
            withoutEntries(TEXT, "NET1"), "# the first network\n# both\n\nNET2 bond0.7 mlx5_1/2\n"
        )

    def test_notThere(self) -> None:
        """A missing entry can't be removed."""
        self.assertRaises(ValueError, withoutEntries, TEXT, "NET3")
        self.assertRaises(ValueError, withoutEntries, TEXT, "NET1", ["bond0.7"])


def attribute(kind: int, value: bytes) -> bytes:
    """Return an attribute of netlink."""
    return struct.pack("=HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)


def answer(*attributes: bytes) -> NetlinkMessage:
    """Return a message of generic netlink."""
    return NetlinkMessage(30, 0, 0, struct.pack("=BBH", 1, 1, 0) + b"".join(attributes))


class KernelTests(SynchronousTestCase):
    """Answers of the kernel; C{system.kernel.test_pnet} compares them with a real one."""

    def test_family(self) -> None:
        """A family is requested by its name and identified by its number."""
        asked = attributesOf(familyRequest("SMC_PNETID"), 4, "genlmsghdr")
        self.assertEqual(asked, {2: b"SMC_PNETID\0"})
        self.assertEqual(familyOf(answer(attribute(1, struct.pack("=H", 30)))), 30)
        self.assertRaises(WireError, familyOf, answer())

    def test_table(self) -> None:
        """An answer has an interface, a port, or both; a missing one is "n/a"."""
        answers = [
            answer(
                attribute(1, b"NET1\0"),
                attribute(2, b"eth0\0"),
                attribute(3, b"n/a\0"),
                attribute(4, b"\xff"),
            ),
            answer(
                attribute(1, b"NET1\0"), attribute(2, b"n/a\0"), attribute(3, b"rxe0\0"), attribute(4, b"\1")
            ),
            answer(attribute(1, b"  \0"), attribute(2, b"eth1\0")),
        ]
        self.assertEqual(tableOf(answers), (PNETEntry("NET1", "eth0"), PNETEntry("NET1", "rxe0/1")))

    @given(st.binary(max_size=60))
    def test_anyAnswer(self, payload: bytes) -> None:
        """Any bytes are decoded to valid entries or refused."""
        try:
            table = tableOf([NetlinkMessage(30, 0, 0, payload)])
        except WireError:
            return
        for entry in table:
            self.assertEqual(parseTable(f"{entry.network} {entry.member}"), (entry,))


ONE = RDMAPort("mlx5_0", 1, frozenset({"eth0"}), True)
TWO = RDMAPort("mlx5_1", 1, frozenset({"eth1"}), True)
DOWN = RDMAPort("mlx5_2", 1, frozenset({"eth0"}), False)


class ChoiceTests(SynchronousTestCase):
    def test_netdev(self) -> None:
        """Without a table the port of the interface, or of a lower one, is chosen."""
        self.assertEqual(portFor(["eth1"], [ONE, TWO], []).port, TWO)
        self.assertEqual(portFor(["bond0.7", "bond0", "eth0", "eth1"], [TWO, ONE], []).port, TWO)
        self.assertIsNone(portFor(["lo"], [ONE, TWO], []).port)

    def test_inactive(self) -> None:
        """A port without a link is skipped, and named as the reason if there is no other one."""
        self.assertEqual(portFor(["eth0"], [DOWN, ONE], []).port, ONE)
        found = portFor(["eth0"], [DOWN], [])
        self.assertIsNone(found.port)
        self.assertIn("none is active: mlx5_2/1", found.reason)

    def test_table(self) -> None:
        """An interface in a network uses only ports of that network."""
        table = parseTable("NET1 eth0 mlx5_1/1")
        found = portFor(["eth0"], [ONE, TWO], [table])
        self.assertEqual((found.port, found.network), (TWO, "NET1"))
        found = portFor(["eth0"], [ONE], [table])
        self.assertEqual((found.port, found.network), (None, "NET1"))

    def test_precedence(self) -> None:
        """The first table that names a member counts."""
        first, second = parseTable("NET1 eth0 mlx5_0/1"), parseTable("NET2 eth0 mlx5_1/1 eth1")
        self.assertEqual(portFor(["eth0"], [ONE, TWO], [first, second]).port, ONE)
        self.assertEqual(portFor(["eth1"], [ONE, TWO], [first, second]).port, TWO)
        self.assertEqual(networkOf("eth2", [first, second]), "")

    @given(
        st.lists(st.sampled_from(["eth0", "eth1", "bond0"]), min_size=1, unique=True),
        st.lists(st.sampled_from([ONE, TWO, DOWN]), unique=True),
        st.lists(
            st.dictionaries(
                st.sampled_from(["eth0", "eth1", "mlx5_0/1", "mlx5_1/1", "mlx5_2/1"]),
                st.sampled_from(["A", "B"]),
            ),
            max_size=2,
        ),
    )
    def test_rules(self, chain: list[str], known: list[RDMAPort], named: list[dict[str, str]]) -> None:
        """A chosen port is active, and in the interface's network or, without a network, on the interface."""
        all_ = [tuple(PNETEntry(network, member) for member, network in each.items()) for each in named]
        found = portFor(chain, known, all_)
        self.assertTrue(found.reason)
        networks = [networkOf(each, all_) for each in chain if networkOf(each, all_)]
        self.assertEqual(found.network, networks[0] if networks else "")

        def fits(port: RDMAPort) -> bool:
            if not port.isActive:
                return False
            if networks:
                return networkOf(port.name, all_) == networks[0]
            return bool(port.interfaces & set(chain))

        self.assertEqual(found.port, next(filter(fits, known), None))


def interface(index: int, name: str, address: str, isLoopback: bool = False) -> NetworkInterface:
    length = 8 if isLoopback else 24
    return NetworkInterface(
        index, name, 1500, True, True, isLoopback, b"", (InterfaceAddress(address, length),)
    )


class NetworksTests(SynchronousTestCase):
    """The interfaces and ports of a host."""

    def setUp(self) -> None:
        self.sysfs = SysFS(self.mktemp())
        self.networks = Networks(
            (ONE, TWO),
            (),
            (
                interface(1, "lo", "127.0.0.1", True),
                interface(2, "eth0", "10.0.0.1"),
                interface(3, "bond0", "10.0.1.1"),
            ),
            str(self.sysfs.root),
        )

    def test_interface(self) -> None:
        """A connection uses the interface with its local address, or loopback if its peer is local."""
        for own, peer, name in (
            ("10.0.0.1", "10.0.0.2", "eth0"),
            ("10.0.0.1", "10.0.1.1", "lo"),
            ("10.0.0.1", "10.0.0.1", "lo"),
            ("127.0.0.1", "127.0.0.5", "lo"),
        ):
            found = self.networks.interfaceOf(own, peer)
            assert found is not None
            self.assertEqual(found.name, name)
        self.assertIsNone(self.networks.interfaceOf("10.0.5.1", "10.0.0.2"))

    def test_port(self) -> None:
        """The port is that of the interface, or of a lower one."""
        self.assertEqual(self.networks.portFor("10.0.0.1", "10.0.0.2").port, ONE)
        self.assertIsNone(self.networks.portFor("10.0.0.1", "10.0.0.1").port)
        self.assertIsNone(self.networks.portFor("10.0.1.1", "10.0.1.2").port)
        os.makedirs(self.sysfs.root / "class" / "net" / "bond0" / "lower_eth1")
        self.assertEqual(self.networks.portFor("10.0.1.1", "10.0.1.2").port, TWO)
        self.assertIn("10.0.5.1", self.networks.portFor("10.0.5.1", "10.0.0.2").reason)


class FileTests(SynchronousTestCase):
    def test_written(self) -> None:
        """A text replaces the file and keeps its mode."""
        path = Path(self.mktemp(), "pnet.conf")
        self.assertEqual(readText(path), "")
        path.parent.mkdir()
        with changing(path):
            writeText(path, "NET1 eth0\n")
        self.assertEqual((readText(path), path.stat().st_mode & 0o777), ("NET1 eth0\n", 0o644))
        path.chmod(0o600)
        writeText(path, "")
        self.assertEqual((readText(path), path.stat().st_mode & 0o777), ("", 0o600))
        self.assertEqual(os.listdir(path.parent), ["pnet.conf"])

    def test_broken(self) -> None:
        """An invalid table is ignored."""
        path = Path(self.mktemp())
        path.write_text("NET1\n")
        self.patch(os, "environ", {**os.environ, "TXRDMA_PNET": str(path)})
        self.patch(pnet, "kernelTable", lambda: (PNETEntry("NET1", "eth0"),))
        self.assertEqual(pnet.tables(), ((PNETEntry("NET1", "eth0"),),))
        path.write_text("NET2 eth0\n")
        self.assertEqual(pnet.tables()[0], (PNETEntry("NET2", "eth0"),))

    def test_ports(self) -> None:
        """The ports of a host are those of sysfs, with their interfaces."""
        sysfs = SysFS(self.mktemp())
        self.assertEqual(pnet.rdmaPorts(sysfs.root), [])
        sysfs.device("mlx5_0")
        sysfs.port("mlx5_0", 1, ROCE, [(GID, "RoCE v2", "eth0"), (GID, "RoCE v2", "eth0.7")])
        sysfs.port("mlx5_0", 2, {**ROCE, "state": "1: DOWN"})
        sysfs.device("siw0", SIW)
        sysfs.port("siw0", 1, ROCE, [(GID, "RoCE v2", "eth1")])
        self.assertEqual(
            pnet.rdmaPorts(sysfs.root),
            [
                RDMAPort("mlx5_0", 1, frozenset({"eth0", "eth0.7"}), True),
                RDMAPort("mlx5_0", 2, frozenset(), False),
            ],
        )
