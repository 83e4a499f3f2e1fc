"""
The C{local} carrier: names, owners of sockets, announcements.
"""

from __future__ import annotations

import os
import socket

from twisted.internet.address import HostnameAddress, IPv4Address, IPv6Address
from twisted.trial.unittest import SynchronousTestCase

from txrdma.smc import signalling
from txrdma.smc.signalling import (
    candidateNames,
    connectingUser,
    findListener,
    listenerName,
    listeningUsers,
    peerUserByTCP,
    Place,
    placeOf,
    sourceFor,
)

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
    """Places, and the names made from them."""

    def test_oneForm(self) -> None:
        """One address has one form, however it is written."""
        self.assertEqual(Place.of("::ffff:127.0.0.1", 5), Place("127.0.0.1", 5))
        self.assertEqual(Place.of("0:0:0:0:0:0:0:1", 5), Place("::1", 5))
        self.assertEqual(Place.of("FE80::1%eth0", 5), Place("fe80::1%eth0", 5))

    def test_ofTransport(self) -> None:
        """Only IP addresses are places."""
        self.assertEqual(placeOf(IPv4Address("TCP", "127.0.0.1", 5)), Place("127.0.0.1", 5))
        self.assertEqual(placeOf(IPv6Address("TCP", "::ffff:1.2.3.4", 5)), Place("1.2.3.4", 5))
        self.assertIsNone(placeOf(HostnameAddress(b"example.com", 5)))

    def test_names(self) -> None:
        """A listener is looked for by the exact address, then by those that mean every interface."""
        self.assertEqual(listenerName(Place("127.0.0.1", 80)), "\0txrdma/smc/127.0.0.1:80")
        self.assertEqual(listenerName(Place("0.0.0.0", 80)), "\0txrdma/smc/*:80")
        self.assertEqual(
            candidateNames(Place("127.0.0.1", 80)),
            ("\0txrdma/smc/127.0.0.1:80", "\0txrdma/smc/*:80", "\0txrdma/smc/[::]:80"),
        )
        self.assertEqual(candidateNames(Place("::1", 80)), ("\0txrdma/smc/[::1]:80", "\0txrdma/smc/[::]:80"))


class TableTests(SynchronousTestCase):
    """Who owns a TCP socket, by tables as Linux writes them (on a little-endian machine)."""

    def setUp(self) -> None:
        self.tables = (self.mktemp(), self.mktemp())
        for path, text in zip(self.tables, (TCP, TCP6), strict=True):
            with open(path, "w") as file:
                file.write(text)

    def test_listening(self) -> None:
        """The owners of all sockets count that may accept."""
        for place, users in (
            (Place("127.0.0.1", 8080), {1000}),
            (Place("127.0.0.2", 8080), set()),
            (Place("127.0.0.1", 80), {0}),
            (Place("192.0.2.7", 80), {0}),
            (Place("::1", 8080), {1002}),
            (Place("127.0.0.1", 8081), {1003}),
            (Place("::1", 8081), {1003}),
            (Place("127.0.0.1", 49152), set()),
        ):
            self.assertEqual(listeningUsers(place, self.tables), users, place)

    def test_connecting(self) -> None:
        """The owner of the client's socket is told, and not the server's."""
        self.assertEqual(connectingUser(Place("127.0.0.1", 0xC000), 8080, self.tables), 1001)
        self.assertEqual(connectingUser(Place("127.0.0.1", 0xC001), 8081, self.tables), 1004)
        self.assertIsNone(connectingUser(Place("127.0.0.1", 0xC002), 8081, self.tables))

    def test_noTable(self) -> None:
        """Without the tables nobody owns anything."""
        self.assertEqual(listeningUsers(Place("127.0.0.1", 80), ("/nowhere/at/all",)), set())


class RealSocketTests(SynchronousTestCase):
    """The same with this machine's sockets and its kernel's word."""

    def listen(self, family: socket.AddressFamily, host: str) -> Place:
        listener = socket.socket(family)
        self.addCleanup(listener.close)
        listener.bind((host, 0))
        listener.listen()
        return Place.of(host, listener.getsockname()[1])

    def test_owners(self) -> None:
        """Both ends of a connection are ours."""
        for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
            place = self.listen(family, host)
            self.assertEqual(listeningUsers(place), {os.geteuid()})
            with socket.create_connection((host, place.port)) as client:
                own = Place.of(*client.getsockname()[:2])
                self.assertEqual(connectingUser(own, place.port), os.geteuid())
                self.assertEqual(peerUserByTCP(place, own, True), os.geteuid())
                self.assertEqual(peerUserByTCP(own, place, False), os.geteuid())

    def test_source(self) -> None:
        """Addresses of this host have a source, others have none."""
        self.assertEqual(sourceFor(Place("127.0.0.1", 80)), Place("127.0.0.1", 0))
        self.assertEqual(sourceFor(Place("127.0.0.9", 80)), Place("127.0.0.1", 0))
        self.assertEqual(sourceFor(Place("::1", 80)), Place("::1", 0))
        self.assertIsNone(sourceFor(Place("192.0.2.1", 80)))
        self.assertIsNone(sourceFor(Place("2001:db8::1", 80)))

    def answering(self, place: Place) -> None:
        squatter = socket.socket(socket.AF_UNIX)
        self.addCleanup(squatter.close)
        squatter.bind(listenerName(place))
        squatter.listen()

    def test_believed(self) -> None:
        """Who owns the TCP socket is believed."""
        place = self.listen(socket.AF_INET, "127.0.0.1")
        self.assertIsNone(findListener(place))
        self.answering(place)
        found = findListener(place)
        assert found is not None
        found.close()

    def test_squatter(self) -> None:
        """Somebody who answers under the name, but does not own the TCP socket, is not believed."""
        place = self.listen(socket.AF_INET, "127.0.0.1")
        self.answering(place)
        self.patch(signalling, "peerUser", lambda connection: 65533)
        self.assertIsNone(findListener(place))
