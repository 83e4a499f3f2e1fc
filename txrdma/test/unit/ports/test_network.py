"""Network interfaces read over netlink: recorded dumps and a fake socket."""

from __future__ import annotations

import errno
import json
import os
import socket
import struct
import sys
from typing import cast
from unittest.mock import Mock

from zope.interface import implementer

from twisted.internet.testing import MemoryReactorClock
from twisted.trial.unittest import SynchronousTestCase

from txrdma.error import DeviceUnavailable, WireError
from txrdma.iba.types import MACAddress
from txrdma.ports import netlink
from txrdma.ports.netlink import (
    InterfaceAddress,
    interfaceOf,
    interfacesFrom,
    interfaceWith,
    NetlinkMessage,
    NetworkInterface,
    parseEvent,
)
from txrdma.ports.network import HostNetwork, INetworkReactor
from txrdma.test.support import VECTORS

RECORDED = VECTORS / "netlink-dump.json"
"""Both dumps of a network namespace with C{lo} and a veth pair, from Linux."""

ADDED = (
    b"add@/devices/virtual/infiniband/rxe0\0ACTION=add\0DEVPATH=/devices/virtual/infiniband/rxe0\0"
    b"SUBSYSTEM=infiniband\0NAME=rxe0\0SEQNUM=1234\0"
)
DISK = b"add@/devices/virtual/block/loop0\0ACTION=add\0SUBSYSTEM=block\0DEVNAME=loop0\0"


def recorded(which: str) -> list[bytes]:
    """Return the datagrams of a dump: C{"links"} or C{"addresses"}."""
    return [bytes.fromhex(text) for text in json.loads(RECORDED.read_text())[which]]


def unpacked(which: str) -> list[NetlinkMessage]:
    return [message for datagram in recorded(which) for message in netlink.messages(datagram)]


class MessageTests(SynchronousTestCase):
    """Messages of netlink; the recorded ones are from a little-endian host."""

    if sys.byteorder != "little":
        skip = "the recording is of a little-endian host"

    def test_interfaces(self) -> None:
        """Both dumps together give each interface with its state and addresses."""
        lo, x1, x0 = interfacesFrom(unpacked("links"), unpacked("addresses"))
        self.assertEqual((lo.name, lo.index, lo.mtu, lo.isLoopback), ("lo", 1, 65536, True))
        self.assertTrue(lo.isRunning)
        self.assertEqual(lo.addresses, (InterfaceAddress("127.0.0.1", 8), InterfaceAddress("::1", 128)))
        self.assertEqual((x0.name, x0.mtu, x0.isUp, x0.hasCarrier), ("x0", 4200, True, False))
        self.assertEqual(x0.mac, MACAddress.fromString("02:00:00:00:00:01"))
        self.assertFalse(x0.isRunning)
        self.assertEqual(
            x0.addresses,
            (
                InterfaceAddress("10.77.0.1", 24),
                InterfaceAddress("10.77.0.9", 24),
                InterfaceAddress("fd00::1", 64, isUsable=False),
                InterfaceAddress("fe80::ff:fe00:1", 64, isUsable=False),
            ),
        )
        self.assertEqual((x1.isUp, x1.addresses), (False, (InterfaceAddress("10.1.0.1", 30),)))

    def test_interfaceWith(self) -> None:
        """An address finds its interface: a second one, IPv6, with a zone, and any of 127.0.0.0/8."""
        interfaces = interfacesFrom(unpacked("links"), unpacked("addresses"))
        for address, name in (
            ("10.77.0.9", "x0"),
            ("::ffff:10.77.0.9", "x0"),
            ("10.1.0.1", "x1"),
            ("10.1.0.2", None),  # the peer's
            ("127.9.8.7", "lo"),
            ("fd00::1", "x0"),
            ("fd00::2", None),
            ("fe80::ff:fe00:1%x0", "x0"),
            ("fe80::ff:fe00:1%3", "x0"),
            ("fe80::ff:fe00:1%x1", None),
        ):
            found = interfaceWith(address, interfaces)
            self.assertEqual(found and found.name, name, address)
            self.assertEqual(interfaceOf(address, unpacked("links"), unpacked("addresses")), found)
        self.assertRaises(ValueError, interfaceWith, "x0", interfaces)

    def test_cutOff(self) -> None:
        """A truncated dump raises WireError or yields less; nothing else is raised."""
        [addresses, _done] = recorded("addresses")
        whole = len(interfacesFrom(unpacked("links"), unpacked("addresses")))
        for length in range(len(addresses)):
            try:
                found = interfacesFrom(unpacked("links"), list(netlink.messages(addresses[:length])))
            except WireError:
                continue
            self.assertEqual(len(found), whole)
        for payload in (b"", bytes(15), bytes(16) + struct.pack("=HH", 9, 1)):
            with self.assertRaises(WireError):
                interfacesFrom([NetlinkMessage(netlink.NEWLINK, 0, 0, payload)], [])
        with self.assertRaises(WireError):
            interfacesFrom([], [NetlinkMessage(netlink.NEWADDR, 0, 0, b"\2")])

    def test_events(self) -> None:
        """A kobject event is recognized by its variables; udev's messages are ignored."""
        self.assertEqual(parseEvent(ADDED)["NAME"], "rxe0")
        self.assertEqual(parseEvent(b"libudev\0\xfe\xed\xca\xfe\0SUBSYSTEM=infiniband\0"), {})
        self.assertEqual(parseEvent(b""), {})


class FakeSocket:
    """A fake netlink socket; a request makes its answers available."""

    def __init__(self, number: int = 0) -> None:
        self.number = number
        self.incoming: list[tuple[bytes, int] | OSError] = []
        self.answers: dict[int, list[list[bytes]]] = {}
        self.groups: set[int] = set()
        self.closed = False

    def sendto(self, request: bytes, address: tuple[int, int]) -> int:
        _length, kind, _flags, sequence, _port = struct.unpack_from("=IHHII", request)
        for answer in self.answers[kind].pop(0):
            renumbered = bytearray(answer)
            offset = 0
            while offset < len(renumbered):
                struct.pack_into("=I", renumbered, offset + 8, sequence)
                offset += (struct.unpack_from("=I", renumbered, offset)[0] + 3) & ~3
            self.incoming.append((bytes(renumbered), 0))
        return len(request)

    def recvfrom(self, size: int) -> tuple[bytes, tuple[int, int]]:
        if not self.incoming:
            raise BlockingIOError(errno.EAGAIN, "nothing there")
        first = self.incoming.pop(0)
        if isinstance(first, OSError):
            raise first
        return first[0], (first[1], 0)

    def setsockopt(self, level: int, option: int, group: int) -> None:
        (self.groups.add if option == 1 else self.groups.remove)(group)

    def fileno(self) -> int:
        return self.number

    def close(self) -> None:
        self.closed = True


@implementer(INetworkReactor)
class MemoryReactor(MemoryReactorClock):
    """A reactor with readers and a clock."""


class HostNetworkTests(SynchronousTestCase):
    """The network seen through fake sockets."""

    if sys.byteorder != "little":
        skip = "the recording is of a little-endian host"

    def setUp(self) -> None:
        self.asking, self.routes, self.events = FakeSocket(), FakeSocket(10), FakeSocket(11)
        sockets = [cast(socket.socket, each) for each in (self.asking, self.routes, self.events)]
        self.network = HostNetwork(*sockets)
        self.reactor = MemoryReactor()
        self.received = 0

    def listener(self) -> None:
        self.received += 1

    def turn(self) -> None:
        """Let the reactor read and run due calls."""
        for reader in list(self.reactor.readers):
            reader.doRead()
        self.reactor.advance(1)

    def answer(self, links: int = 1, addresses: int = 1) -> None:
        self.asking.answers = {
            netlink.GETLINK: [recorded("links") for _ in range(links)],
            netlink.GETADDR: [recorded("addresses") for _ in range(addresses)],
        }

    def test_interfaces(self) -> None:
        """Interfaces equal those in the kernel's answers."""
        self.answer()
        self.assertEqual([each.name for each in self.network.interfaces()], ["lo", "x1", "x0"])
        self.answer()
        found = self.network.interface("x0")
        assert found is not None
        self.assertEqual(found.mtu, 4200)

    def test_interrupted(self) -> None:
        """A dump that was interrupted by a change is requested again."""
        self.answer(links=2)
        broken = bytearray(recorded("links")[0])
        struct.pack_into("=H", broken, 6, netlink.INTERRUPTED | 2)
        struct.pack_into("=i", broken, 20, 99)  # the index of the first
        self.asking.answers[netlink.GETLINK][0][0] = bytes(broken)
        self.assertEqual([each.index for each in self.network.interfaces()], [1, 2, 3])
        self.assertEqual(self.asking.answers[netlink.GETLINK], [])

    def test_alwaysInterrupted(self) -> None:
        """An address that is not in dumps which changes always interrupt may exist: no answer is given."""
        addresses = bytearray(recorded("addresses")[0])
        struct.pack_into("=H", addresses, 6, netlink.INTERRUPTED | 2)
        dump = [bytes(addresses), *recorded("addresses")[1:]]

        def found(address: str) -> NetworkInterface | None:
            self.answer()
            self.asking.answers[netlink.GETADDR] = [list(dump) for _ in range(5)]
            return self.network.interfaceOf(address)

        interface = found("127.0.0.1")
        assert interface is not None
        self.assertEqual(interface.name, "lo")
        self.assertRaises(DeviceUnavailable, found, "203.0.113.1")

    def test_otherMessages(self) -> None:
        """Messages of other processes and answers to earlier requests are ignored."""
        self.answer()
        [links, *_] = recorded("links")
        self.asking.incoming = [(links, 4711), (links, 0)]
        self.assertEqual(len(self.network.interfaces()), 3)

    def test_refused(self) -> None:
        """An error of the kernel is raised with its reason."""
        no = struct.pack("=IHHIIi", 20, netlink.ERROR, 0, 0, 0, -errno.EPERM)
        self.asking.answers = {netlink.GETLINK: [[no]]}
        output = str(self.assertRaises(DeviceUnavailable, self.network.interfaces))
        self.assertIn(os.strerror(errno.EPERM), output)

    def test_noAnswer(self) -> None:
        """A missing answer of the kernel causes a timeout."""
        self.asking.answers = {netlink.GETLINK: [[]]}
        self.assertRaises(DeviceUnavailable, self.network.interfaces)

    def test_notices(self) -> None:
        """Many changes are reported once, shortly after; events unrelated to RDMA are not reported."""
        self.network.watch(self.reactor, self.listener)
        self.assertEqual((self.routes.groups, self.events.groups), ({1, 5, 9}, {1}))
        self.routes.incoming = [(b"changed", 0)] * 3
        self.events.incoming = [(ADDED, 0)]
        for reader in list(self.reactor.readers):
            reader.doRead()
        self.assertEqual(self.received, 0)
        self.reactor.advance(HostNetwork.SETTLING)
        self.assertEqual(self.received, 1)
        self.events.incoming = [(DISK, 0), (ADDED, 4711)]
        self.turn()
        self.assertEqual(self.received, 1)
        self.routes.incoming = [(b"changed", 0)]
        self.turn()
        self.assertEqual(self.received, 2)

    def test_overrun(self) -> None:
        """An overrun of the socket counts as a change."""
        self.network.watch(self.reactor, self.listener)
        self.routes.incoming = [OSError(errno.ENOBUFS, "lost some")]
        self.turn()
        self.assertEqual(self.received, 1)

    def test_unwatch(self) -> None:
        """A stopped listener is not called; after the last one nothing remains in the reactor."""
        first = self.network.watch(self.reactor, self.listener)
        second = self.network.watch(self.reactor, self.listener)
        first()
        first()
        self.routes.incoming = [(b"changed", 0)]
        self.turn()
        self.assertEqual(self.received, 1)
        self.routes.incoming = [(b"changed", 0)]
        for reader in list(self.reactor.readers):
            reader.doRead()
        second()
        self.reactor.advance(1)
        self.assertEqual(self.received, 1)
        self.assertEqual((self.reactor.readers, self.reactor.getDelayedCalls()), (set(), []))
        self.assertEqual(self.routes.groups, set())

    def test_badListener(self) -> None:
        """An exception of a listener is logged, and the other listeners are called."""
        self.network.watch(self.reactor, Mock(side_effect=RuntimeError("my fault")))
        self.network.watch(self.reactor, self.listener)
        self.routes.incoming = [(b"changed", 0)]
        self.turn()
        self.assertEqual(self.received, 1)
        self.assertEqual(len(self.flushLoggedErrors(RuntimeError)), 1)

    def test_close(self) -> None:
        """Closing stops all listeners before the sockets are closed. Idempotent."""
        self.network.watch(self.reactor, self.listener)
        self.network.close()
        self.network.close()
        self.assertEqual(self.reactor.readers, set())
        self.assertTrue(self.asking.closed and self.routes.closed and self.events.closed)
        self.assertRaises(DeviceUnavailable, self.network.interfaces)
        self.assertRaises(DeviceUnavailable, self.network.watch, self.reactor, self.listener)

    def test_elsewhere(self) -> None:
        """Opening raises an error on a system without netlink."""
        self.patch(sys, "platform", "plan9")
        self.assertIn("plan9", str(self.assertRaises(DeviceUnavailable, HostNetwork.open)))
