"""
The C{local} carrier: names, and what the two sides of an announcement say to each other.
"""

from __future__ import annotations

import os
import select
import socket
import struct
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

from twisted.internet.address import IPv4Address
from twisted.internet.tcp import Connection
from twisted.internet.testing import MemoryReactorClock
from twisted.trial.unittest import SynchronousTestCase

from txrdma.smc.common.reactoruse import reactorUse
from txrdma.smc.signalling import local as signalling
from txrdma.smc.signalling import localclient as announcing
from txrdma.smc.signalling.local import Announced, AnnouncementConnection, Announcements, listenerName
from txrdma.smc.signalling.localclient import (
    Announcement,
    ANSWER_SECONDS,
    Channel,
    channelTo,
    findListener,
    LONGEST_WAIT,
)
from txrdma.smc.signalling.owners import TCPAddress
from txrdma.smc.signalling.silence import silentPeers
from txrdma.unix import sockets as unixsockets
from txrdma.unix.sockets import Credentials, Reactor

CLIENT = TCPAddress("127.0.0.1", 40000)


class PumpedReactor(MemoryReactorClock):
    """A reactor with real UNIX sockets, which looks at them when it is told to."""

    def advance(self, amount: float) -> None:
        """Let time pass; what a call schedules for now waits for the next turn, as in real reactors."""
        self.rightNow += amount
        for call in [each for each in self.getDelayedCalls() if each.getTime() <= self.rightNow]:
            if call.active():
                run: Callable[[], object] = cast(Any, call).func
                call.cancel()
                run()

    def serve(self) -> None:
        """Let everybody read and write, until nobody can."""
        while True:
            self.advance(0)
            ready, writable, _ = select.select(self.getReaders(), self.getWriters(), [], 0)
            if not ready and not writable:
                return
            for each in ready:
                if each in self.getReaders():
                    each.doRead()
            for each in writable:
                if each in self.getWriters():
                    each.doWrite()


class Base(SynchronousTestCase):
    """A listener by TCP, and a reactor."""

    def setUp(self) -> None:
        self.reactor = PumpedReactor()
        self.use = reactorUse(self.reactor).hold()
        self.addCleanup(self.use.release)
        tcp = socket.socket()
        self.addCleanup(tcp.close)
        tcp.bind(("127.0.0.1", 0))
        tcp.listen()
        self.place = TCPAddress("127.0.0.1", tcp.getsockname()[1])

    def announcements(self, anybody: bool = False, room: int = 1000) -> Announcements:
        """The listener answers."""
        announcements = Announcements(cast(Reactor, self.reactor), anybody, room)
        announcements.begin(self.place)
        self.addCleanup(self.reactor.serve)
        self.addCleanup(announcements.stop)
        return announcements


class FindTests(Base):
    """Who is believed."""

    def answering(self, place: TCPAddress) -> None:
        squatter = socket.socket(socket.AF_UNIX)
        self.addCleanup(squatter.close)
        squatter.bind(listenerName(place))
        squatter.listen()

    def test_believed(self) -> None:
        """Who owns the TCP socket is believed."""
        self.assertIsNone(findListener(self.place))
        self.answering(self.place)
        found = findListener(self.place)
        assert found is not None
        found.close()

    def test_squatter(self) -> None:
        """Somebody who answers under the name, but does not own the TCP socket, is not believed."""
        self.answering(self.place)
        self.patch(announcing, "peerOf", lambda connection: Credentials(1, 65533))
        self.assertIsNone(findListener(self.place))


class AnnouncementTests(Base):
    """A client that announces a connection, and its listener."""

    def channel(self) -> Channel:
        channel = channelTo(cast(Reactor, self.reactor), self.place)
        assert channel is not None
        return channel

    def announce(self, client: TCPAddress = CLIENT) -> Announcement:
        """A client has said where its connection comes from."""
        announcement = Announcement(self.channel(), client)
        self.reported: list[str] = []
        announcement.then(lambda: self.reported.append("answered"))
        return announcement

    def connected(self, announcement: Announcement) -> None:
        """The client's TCP connection is there."""
        announcement.then(lambda: self.reported.append("accepted" if announcement.isAccepted else "plain"))

    def claimed(self, announcements: Announcements) -> Announced:
        """The listener has the client's TCP connection."""
        announced = announcements.claim(CLIENT)
        assert announced is not None
        announced.onWithdrawal = self.withdrawn
        return announced

    def withdrawn(self) -> None:
        """The client goes on without SMC."""
        self.reported.append("withdrawn")

    def assertNothingLeft(self) -> None:
        """When SMC is not in use any more, nothing but the listener is in the reactor."""
        self.reactor.serve()
        self.assertEqual(self.reactor.getDelayedCalls(), [])
        self.use.release()
        self.reactor.serve()
        self.assertEqual(len(self.reactor.getReaders()), 1)
        self.assertEqual(self.reactor.getWriters(), [])
        self.assertEqual(self.reactor.getDelayedCalls(), [])

    def test_accepted(self) -> None:
        """The listener expects the connection, has it, and says so; then nothing is left of all that."""
        announcements = self.announcements()
        announcement = self.announce()
        self.assertEqual(self.reported, [])
        self.reactor.serve()
        self.assertEqual((self.reported, announcement.user), (["answered"], os.geteuid()))
        self.assertEqual(announcement.listener, (os.getpid(), os.geteuid()))
        self.connected(announcement)
        announced = self.claimed(announcements)
        self.assertEqual(announced.client, (os.getpid(), os.geteuid()))
        announced.expect(self.withdrawn)
        self.reactor.serve()
        self.assertEqual(self.reported, ["answered", "accepted"])
        self.assertNothingLeft()
        self.assertEqual(self.reported, ["answered", "accepted"])

    def test_unexpected(self) -> None:
        """A connection that nobody announced is claimed by nobody."""
        self.assertIsNone(self.announcements().claim(CLIENT))

    def test_patience(self) -> None:
        """A listener that does not answer is waited for, but not for long; it is remembered as silent."""
        announcements = self.announcements()
        announcement = self.announce()
        self.reactor.advance(ANSWER_SECONDS)
        self.assertEqual((self.reported, announcement.isOver, announcement.user), (["answered"], True, -1))
        self.assertTrue(silentPeers(self.reactor).isSilent(self.place, self.reactor.seconds()))
        self.assertNothingLeft()
        self.assertEqual(announcements.expected, {})

    def test_busyListener(self) -> None:
        """A listener that accepts when the client has given up hears of that, whatever comes first."""
        announcements = self.announcements()
        announcement = self.announce()
        self.reactor.serve()
        self.connected(announcement)
        announced = self.claimed(announcements)
        self.reactor.advance(ANSWER_SECONDS)
        self.assertEqual(self.reported, ["answered", "plain"])
        announced.expect(self.withdrawn)
        self.reactor.serve()
        self.assertEqual(self.reported, ["answered", "plain", "withdrawn"])
        self.assertNothingLeft()

    def test_busyClient(self) -> None:
        """A client that was busy for so long hears what the listener had said in time."""
        announcements = self.announcements()
        announcement = self.announce()
        self.reactor.serve()
        self.connected(announcement)
        self.claimed(announcements).expect(self.withdrawn)
        self.reactor.advance(ANSWER_SECONDS + 5)
        self.reactor.serve()
        self.assertEqual(self.reported, ["answered", "accepted"])
        self.assertFalse(silentPeers(self.reactor).isSilent(self.place, self.reactor.seconds()))
        self.assertNothingLeft()

    def test_forgotten(self) -> None:
        """A client that was stopped tells nobody, and leaves nothing."""
        announcements = self.announcements()
        announcement = self.announce()
        self.reactor.serve()
        self.assertEqual(list(announcements.expected), [CLIENT])
        self.connected(announcement)
        announcement.forget()
        self.assertNothingLeft()
        self.assertEqual((self.reported, announcements.expected), (["answered"], {}))

    def test_listenerCloses(self) -> None:
        """Who waits for a connection to be accepted hears when the listener accepts no more."""
        announcements = self.announcements()
        announcement = self.announce()
        self.reactor.serve()
        self.connected(announcement)
        announcements.stop()
        self.reactor.serve()
        self.assertEqual(self.reported, ["answered", "plain"])
        self.use.release()
        self.assertEqual(self.reactor.getReaders(), [])
        self.assertEqual(self.reactor.getDelayedCalls(), [])

    def test_somebodyElseListens(self) -> None:
        """A listener's word counts no more when another user has come between."""
        announcements = self.announcements()
        announcement = self.announce()
        self.reactor.serve()
        self.connected(announcement)
        announcement.listener = Credentials(1, 1000)
        self.patch(announcing, "acceptingUsers", lambda target: {1001})
        self.claimed(announcements).expect(self.withdrawn)
        self.reactor.serve()
        self.assertEqual(self.reported, ["answered", "plain", "withdrawn"])
        self.assertNothingLeft()

    def test_twice(self) -> None:
        """A connection can be announced once; a second client hears at once that it is not expected."""
        announcements = self.announcements()
        first = self.announce()
        self.reactor.serve()
        second = self.announce()
        self.reactor.serve()
        self.assertEqual((self.reported, second.isOver, second.user), (["answered"], True, -1))
        self.assertEqual(list(announcements.expected), [CLIENT])
        first.forget()

    def test_stranger(self) -> None:
        """What a stranger has announced gives way to who belongs here, and not the other way round."""
        announcements = self.announcements(anybody=True)
        unknownPeer, other, ours = (
            Announced(None, CLIENT, 1, Credentials(1, user)) for user in (65533, 65534, os.geteuid())
        )
        self.assertTrue(announcements.expect(CLIENT, unknownPeer))
        self.assertFalse(announcements.expect(CLIENT, other))
        self.assertTrue(announcements.expect(CLIENT, ours))
        self.assertFalse(announcements.expect(CLIENT, unknownPeer))
        self.assertIs(announcements.claim(CLIENT), ours)

    def test_notItsOwn(self) -> None:
        """Who announces another's connection is found out, unless it is root."""
        with socket.create_connection(self.place) as client:
            own = TCPAddress.of(*client.getsockname())
            user = os.geteuid()
            for who, isFrom in ((user, True), (user + 1, False), (0, True)):
                announced = Announced(None, own, 1, Credentials(1, who))
                self.assertEqual(announced.isFrom(own, self.place), isFrom)

    def test_portUsedAgain(self) -> None:
        """A connection broken off before it was accepted is not taken for the next one from its port."""
        own, first, second = socket.socket(), socket.socket(), socket.socket()
        for each in (own, first, second):
            self.addCleanup(each.close)
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        own.bind(("127.0.0.1", 0))
        own.listen()
        first.bind(("127.0.0.1", 0))
        port = first.getsockname()[1]
        first.connect(own.getsockname())
        first.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        first.close()  # by a reset: nothing of it is left here
        second.bind(("127.0.0.1", port))
        second.connect(own.getsockname())
        announcements = self.announcements()
        announced = Announced(None, TCPAddress("127.0.0.1", port), 1, Credentials(os.getpid(), os.geteuid()))
        announcements.expect(announced.place, announced)
        arrivals = []
        for _ in range(2):
            accepted, peer = own.accept()
            self.addCleanup(accepted.close)
            places = {"getPeer": peer, "getHost": own.getsockname()}
            ends = {name: partial(IPv4Address, "TCP", *place) for name, place in places.items()}
            transport = SimpleNamespace(socket=accepted, **ends)
            arrivals.append(announcements.arrived(cast(Connection, transport)))
        self.assertEqual(arrivals, [None, announced])

    def test_nonsense(self) -> None:
        """Who says something else is shown the door."""
        announcements = self.announcements()
        lines = (
            *(b"hello", b"connecting", b"connecting 1 here 5", b"connecting 1 ::1 x", b"connecting x ::1 5"),
            *(b"plain", b"plain x", b"plain 1 2", b"\xff" * 500),
        )
        for line in lines:
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(listenerName(self.place))
                client.send(line + b"\n")
                self.reactor.serve()
                client.setblocking(False)
                self.assertEqual(client.recv(100), b"", line)
        self.assertEqual((announcements.expected, announcements.connections), ({}, set()))
        self.assertNothingLeft()

    def test_welcome(self) -> None:
        """Other users may announce themselves only where the device was chosen by hand."""
        for anybody in (False, True):
            announcements = Announcements(cast(Reactor, self.reactor), anybody)
            self.assertTrue(announcements.welcome(os.geteuid()))
            self.assertTrue(announcements.welcome(0))
            self.assertEqual(announcements.welcome(os.geteuid() + 1), anybody)

    def test_takenName(self) -> None:
        """A listener whose name is taken goes without; its log entry is text."""
        self.announcements()
        entries: list[str] = []
        warn: Callable[..., None] = lambda text, **fields: entries.append(text.format(**fields))  # noqa: E731
        self.patch(signalling._log, "warn", warn)
        second = Announcements(cast(Reactor, self.reactor), False)
        second.begin(self.place)
        second.stop()
        [entry] = entries
        self.assertIn("plain TCP", entry)
        self.assertTrue(entry.isprintable())

    def test_manyClients(self) -> None:
        """Hundreds announce themselves at once, and none takes another's place."""
        announcements = self.announcements()
        many = [self.announce(CLIENT._replace(port=40000 + number)) for number in range(300)]
        self.reactor.serve()
        self.assertEqual({each.user for each in many}, {os.geteuid()})
        self.assertEqual(len(announcements.expected), 300)
        for each in many:
            each.forget()
        self.assertNothingLeft()
        self.assertEqual(announcements.expected, {})

    def test_room(self) -> None:
        """No more connections come at once than TCP has room for; the others are told when there is."""
        announcements = self.announcements(room=10)
        many = [self.announce(CLIENT._replace(port=40000 + number)) for number in range(30)]
        expected = lambda: sum(each.user >= 0 for each in many)  # noqa: E731
        self.reactor.serve()
        self.assertEqual(expected(), 10)
        claimed = [announcements.claim(CLIENT._replace(port=40000 + number)) for number in range(5)]
        self.reactor.serve()
        self.assertEqual(expected(), 15)
        for each in many[5:10]:
            each.forget()
        self.reactor.serve()
        self.assertEqual(expected(), 20)
        self.reactor.advance(1.0)  # who does not come takes nobody's room for longer
        self.reactor.serve()
        self.assertEqual(expected(), 30)
        for each in many:
            each.forget()
        for one in claimed:
            assert one is not None
            one.settle()
        self.assertNothingLeft()
        self.assertEqual(announcements.expected, {})

    def test_neverComes(self) -> None:
        """What was announced and does not come for a minute is forgotten."""
        announcements = self.announcements()
        announcement = self.announce()
        self.reactor.serve()
        for _ in range(61):
            self.reactor.advance(1.0)
        self.assertEqual(announcements.expected, {})
        self.assertEqual(self.reactor.getDelayedCalls(), [])
        announcement.forget()
        self.assertNothingLeft()

    def test_progress(self) -> None:
        """A listener that answers others is waited for, while it has many; but not for ever."""
        self.announcements()
        first = self.announce()
        self.reactor.serve()
        self.connected(first)
        for number in range(int(LONGEST_WAIT)):
            self.assertFalse(first.isOver)
            channel = self.channel()
            other = Announcement(channel, CLIENT._replace(port=50000 + number))
            self.reactor.serve()
            self.assertEqual(other.user, os.geteuid())
            other.forget()
            self.reactor.advance(1.0)
        self.reactor.advance(ANSWER_SECONDS)
        self.assertEqual((first.isOver, first.isAccepted), (True, False))
        self.assertFalse(silentPeers(self.reactor).isSilent(self.place, self.reactor.seconds()))
        self.assertNothingLeft()

    def test_oneSocket(self) -> None:
        """All connections to a listener are announced by one socket, as long as the listener is there."""
        announcements = self.announcements()
        first = self.channel()
        self.reactor.serve()
        self.assertIs(self.channel(), first)
        self.assertEqual(len(announcements.connections), 1)
        announcements.stop()
        self.assertIsNone(channelTo(cast(Reactor, self.reactor), self.place))
        announcements.begin(self.place)
        self.assertIsNot(self.channel(), first)

    def test_cut(self) -> None:
        """Who has announced a connection to a listener that went at this moment is told that this was it."""
        announcements = self.announcements()
        self.announce().forget()
        self.reactor.serve()
        announcement = self.announce()
        announcements.stop()
        announcements.begin(self.place)
        self.reactor.serve()
        self.assertEqual((self.reported, announcement.wasCut, announcement.user), (["answered"], True, -1))
        self.assertNothingLeft()

    def test_swept(self) -> None:
        """A socket that somebody has removed from the reactor is there again with the next use."""
        self.announcements()
        self.channel()
        self.reactor.serve()
        listener = [each for each in self.reactor.getReaders() if type(each).__name__ == "LocalListener"]
        self.reactor.removeAll()
        for each in listener:
            self.reactor.addReader(each)
        self.use = reactorUse(self.reactor).hold()
        announcement = self.announce()
        self.reactor.serve()
        self.assertEqual((self.reported, announcement.user), ([], -1))  # the listener's end was removed, too
        self.assertIn(announcement._channel._lines, self.reactor.getReaders())
        announcement.forget()

    def test_strangersAreFew(self) -> None:
        """Processes of other users hold a bounded number of a listener's descriptors."""
        self.patch(signalling, "_MOST_OTHER_USERS", 2)
        announcements = self.announcements(anybody=True)
        self.patch(signalling, "processAt", lambda connection: Credentials(1, 65533))
        clients = [socket.socket(socket.AF_UNIX) for _ in range(4)]
        for client in clients:
            self.addCleanup(client.close)
            client.connect(listenerName(self.place))
        self.patch(unixsockets, "peerOf", lambda connection: Credentials(1, 65533))
        self.reactor.serve()
        self.assertEqual(len(announcements.connections), 2)

    def test_strangersAreBounded(self) -> None:
        """A process of another user announces a bounded number of connections, and our own come first."""
        announcements = self.announcements(anybody=True, room=1)
        near, far = socket.socketpair(socket.AF_UNIX)
        self.addCleanup(far.close)
        unknownPeer = AnnouncementConnection(announcements, near)
        unknownPeer.client = Credentials(1, 65533)
        for number in range(200):
            unknownPeer.obey(b"connecting %d 127.0.0.1 %d" % (number, 1000 + number))
        self.assertEqual(len(announcements.expected), 64)
        near, far = socket.socketpair(socket.AF_UNIX)
        self.addCleanup(far.close)
        ours = AnnouncementConnection(announcements, near)
        ours.obey(b"connecting 1 127.0.0.1 9999")
        announcements.connections.update((unknownPeer, ours))
        announcements.forget(announcements.expected[TCPAddress.of("127.0.0.1", 1000)])
        self.assertIn(announcements.expected[TCPAddress.of("127.0.0.1", 9999)], announcements._coming)

    def test_clientDies(self) -> None:
        """A client that goes without a word is forgotten."""
        announcements = self.announcements()
        announcement = self.announce()
        self.reactor.serve()
        announcement._channel._lines.close()
        self.assertNothingLeft()
        self.assertEqual(announcements.expected, {})
