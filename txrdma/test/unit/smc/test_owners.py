"""
Addresses of TCP sockets, and the owners of these sockets.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from unittest.mock import MagicMock, Mock

from twisted.internet.address import HostnameAddress, IPv4Address, IPv6Address
from twisted.logger import capturedLogs, formatEvent, Logger
from twisted.trial.unittest import SynchronousTestCase

from txrdma.kit.logs import RateLimitedLogger
from txrdma.smc.signalling import local, localclient, owners
from txrdma.smc.signalling.local import Announced
from txrdma.smc.signalling.owners import (
    acceptingUsers,
    isOwned,
    socketUser,
    TCPAddress,
    tcpAddressOf,
)
from txrdma.unix.sockets import Credentials

TCP = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 11 1 0 100 0 0 10 0
   1: 00000000:0050 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 12 1 0 100 0 0 10 0
   2: 0100007F:1F90 0100007F:C000 01 00000000:00000000 00:00000000 00000000  1000        0 13 1 0 100 0 0 10 0
   3: 0100007F:C000 0100007F:1F90 01 00000000:00000000 00:00000000 00000000  1001        0 14 1 0 100 0 0 10 0
"""

TCP6 = """\
  sl  local_address                         remote_address                        st tx_queue rx_queue tr ...
   0: 00000000000000000000000001000000:1F90 00000000000000000000000000000000:0000 0A 0:0 00:0 0  1002 0 21 1
   1: 00000000000000000000000000000000:1F91 00000000000000000000000000000000:0000 0A 0:0 00:0 0  1003 0 22 1
   2: 0000000000000000FFFF00000100007F:1F91 0000000000000000FFFF00000100007F:C001 01 0:0 00:0 0  1003 0 23 1
   3: 0000000000000000FFFF00000100007F:C001 0000000000000000FFFF00000100007F:1F91 01 0:0 00:0 0  1004 0 24 1
"""


class PlaceTests(SynchronousTestCase):
    def test_addressHasOneForm(self) -> None:
        self.assertEqual(TCPAddress.of("::ffff:127.0.0.1", 5), TCPAddress("127.0.0.1", 5))
        self.assertEqual(TCPAddress.of("0:0:0:0:0:0:0:1", 5), TCPAddress("::1", 5))
        self.assertEqual(TCPAddress.of("FE80::1%eth0", 5), TCPAddress("fe80::1%eth0", 5))
        self.assertEqual((TCPAddress.of("FE80::1%eth0", 5).zone, TCPAddress("::1", 5).zone), ("eth0", ""))

    def test_onlyIPAddresses(self) -> None:
        self.assertEqual(tcpAddressOf(IPv4Address("TCP", "127.0.0.1", 5)), TCPAddress("127.0.0.1", 5))
        self.assertEqual(tcpAddressOf(IPv6Address("TCP", "::ffff:1.2.3.4", 5)), TCPAddress("1.2.3.4", 5))
        self.assertIsNone(tcpAddressOf(HostnameAddress(b"example.com", 5)))


class TableTests(SynchronousTestCase):
    """Without the kernel's diagnosis, C{/proc/net/tcp} of a little-endian machine names the owner."""

    def setUp(self) -> None:
        tables = (self.mktemp(), self.mktemp())
        for path, text in zip(tables, (TCP, TCP6), strict=True):
            with open(path, "w") as file:
                file.write(text)
        self.patch(owners, "TABLES", tables)

        def refuse(*arguments: object) -> None:
            raise OSError(errno.EPROTONOSUPPORT, "not here")

        self.patch(owners, "_query", refuse)

    def test_ownersOfAcceptingSockets(self) -> None:
        for place, users in (
            (TCPAddress("127.0.0.1", 8080), {1000}),
            (TCPAddress("127.0.0.2", 8080), set()),
            (TCPAddress("0.0.0.0", 8080), {1000}),
            (TCPAddress("127.0.0.1", 80), {0}),
            (TCPAddress("192.0.2.7", 80), {0}),
            (TCPAddress("::1", 8080), {1002}),
            (TCPAddress("::", 8080), {1002}),
            (TCPAddress("127.0.0.1", 8081), {1003}),
            (TCPAddress("::1", 8081), {1003}),
            (TCPAddress("127.0.0.1", 49152), set()),
        ):
            self.assertEqual(acceptingUsers(place), users, place)

    def test_ownerOfOneEnd(self) -> None:
        for client, server, user in (
            (TCPAddress("127.0.0.1", 0xC000), TCPAddress("127.0.0.1", 8080), 1001),
            (TCPAddress("127.0.0.1", 8080), TCPAddress("127.0.0.1", 0xC000), 1000),
            (TCPAddress("127.0.0.1", 0xC001), TCPAddress("127.0.0.1", 8081), 1004),
            (TCPAddress("127.0.0.1", 0xC002), TCPAddress("127.0.0.1", 8081), None),
        ):
            self.assertEqual(socketUser(client, server), user)

    def test_noTable(self) -> None:
        self.patch(owners, "TABLES", ("/nowhere/at/all",))
        self.assertEqual(acceptingUsers(TCPAddress("127.0.0.1", 80)), set())
        self.assertIsNone(socketUser(TCPAddress("127.0.0.1", 1), TCPAddress("127.0.0.1", 80)))


class UnknownOwnerTests(SynchronousTestCase):
    """If the owner of a socket is not found, as without descriptors, a connection uses plain TCP."""

    here, there = TCPAddress("127.0.0.1", 8080), TCPAddress("127.0.0.1", 40000)

    def setUp(self) -> None:
        self.patch(owners, "TABLES", ("/nowhere/at/all",))
        self.patch(owners, "_query", Mock(side_effect=OSError(errno.EMFILE, "Too many open files")))

    def warnings(self, module: object, call: Callable[[], object]) -> list[str]:
        """Return the warnings that a call logs, with the reason before them."""
        self.patch(module, "_rateLimited", RateLimitedLogger(Logger()))
        with capturedLogs() as events:
            self.assertFalse(call())
        reason, *others = map(formatEvent, events)
        self.assertIn("Too many open files", reason)
        return [line for line in others if "/nowhere" not in line]

    def test_announcedConnection(self) -> None:
        """The listener does not log that the connection is another user's."""
        announced = Announced(None, self.there, 1, Credentials(1, 1000))
        lines = self.warnings(local, lambda: announced.isFrom(self.there, self.here))
        self.assertEqual(
            lines, ["user 1000 announced a connection whose owner was not found: it uses plain TCP"]
        )

    def test_listener(self) -> None:
        """The client does not log that another user listens."""
        self.patch(localclient, "socket", MagicMock())
        self.patch(localclient, "candidateNames", lambda target: ("name",))
        self.patch(localclient, "peerOf", lambda connection: Credentials(1, 1000))
        lines = self.warnings(localclient, lambda: localclient.findListener(self.here))
        self.assertEqual(
            lines, ["user 1000 claims 127.0.0.1:8080, whose listener was not found: using plain TCP"]
        )


class PrecedenceTests(SynchronousTestCase):
    """The listening socket that the kernel selects among several."""

    def accepting(self, target: TCPAddress, *listeners: tuple[str, int, bool]) -> set[int]:
        self.patch(
            owners, "_diagnosedListeners", lambda port: [owners._Listener(*each) for each in listeners]
        )
        return acceptingUsers(target)

    def test_otherUsersWildcardSocketDoesNotCount(self) -> None:
        here = TCPAddress("127.0.0.1", 80)
        ours, every, any_ = ("127.0.0.1", 1000, False), ("0.0.0.0", 1000, False), ("::", 1001, False)
        self.assertEqual(self.accepting(here, any_, ours), {1000})
        self.assertEqual(self.accepting(here, any_, every), {1000})
        self.assertEqual(self.accepting(here, any_), {1001})
        self.assertEqual(self.accepting(here, ("::", 1001, True)), set())
        self.assertEqual(self.accepting(TCPAddress("::1", 80), ("::", 1001, True), every), {1001})

    def test_soleOwnerAtFirstAddress(self) -> None:
        here = TCPAddress("127.0.0.1", 80)
        self.accepting(here, ("127.0.0.1", 1000, False), ("127.0.0.1", 1001, False))
        self.assertFalse(isOwned(1000, here))
        self.assertTrue(isOwned(0, here))
        self.accepting(here, ("127.0.0.1", 1000, False), ("0.0.0.0", 1001, False))
        self.assertTrue(isOwned(1000, here))
        self.assertFalse(isOwned(1001, here))
