"""
The C{local} signalling method: names of listeners, and the messages of an announcement.
"""

from __future__ import annotations

import errno
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
from twisted.logger import capturedLogs, formatEvent
from twisted.python.monkey import MonkeyPatcher
from twisted.trial.unittest import SynchronousTestCase

from txrdma.kit.logs import RateLimitedLogger
from txrdma.smc.common.reactoruse import reactorUse
from txrdma.smc.signalling import local as signalling
from txrdma.smc.signalling import localclient as announcing
from txrdma.smc.signalling import owners
from txrdma.smc.signalling.local import Announced, AnnouncementConnection, Announcements, listenerName
from txrdma.smc.signalling.localclient import (
    Announcement,
    AnnouncementChannel,
    ANSWER_SECONDS,
    channelTo,
    findListener,
    LONGEST_WAIT,
)
from txrdma.smc.signalling.owners import TCPAddress
from txrdma.smc.signalling.peeridentity import PeerIdentity
from txrdma.smc.signalling.silence import silentPeers
from txrdma.unix import sockets as unixsockets
from txrdma.unix.sockets import Credentials, Reactor

CLIENT = TCPAddress("127.0.0.1", 40000)


class PumpedReactor(MemoryReactorClock):
    """A reactor with real UNIX sockets, which polls them on request."""

    def advance(self, amount: float) -> None:
        """Advance the clock; a call scheduled for now waits for the next iteration, as in real reactors."""
        self.rightNow += amount
        for call in [each for each in self.getDelayedCalls() if each.getTime() <= self.rightNow]:
            if call.active():
                run: Callable[[], object] = cast(Any, call).func
                call.cancel()
                run()

    def serve(self) -> None:
        """Read and write until all sockets are idle."""
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
    """A TCP listener and a reactor."""

    def setUp(self) -> None:
        self.reactor = PumpedReactor()
        self.use = reactorUse(self.reactor).hold()
        self.addCleanup(self.use.release)
        tcp = socket.socket()
        self.addCleanup(tcp.close)
        tcp.bind(("127.0.0.1", 0))
        tcp.listen()
        self.address = TCPAddress("127.0.0.1", tcp.getsockname()[1])

    def announcements(self, anybody: bool = False, capacity: int = 1000) -> Announcements:
        announcements = Announcements(cast(Reactor, self.reactor), anybody, capacity)
        announcements.begin(self.address)
        self.addCleanup(self.reactor.serve)
        self.addCleanup(announcements.stop)
        return announcements


class FindTests(Base):
    def answering(self, place: TCPAddress) -> None:
        squatter = socket.socket(socket.AF_UNIX)
        self.addCleanup(squatter.close)
        squatter.bind(listenerName(place))
        squatter.listen()

    def test_ownerOfTCPSocketIsTrusted(self) -> None:
        self.assertIsNone(findListener(self.address))
        self.answering(self.address)
        found = findListener(self.address)
        assert found is not None
        found.close()

    def test_noDescriptor(self) -> None:
        """Without a free descriptor no query is sent, which is logged once with the remedy."""
        self.patch(announcing, "_rateLimited", RateLimitedLogger(announcing._log))

        def none(*_: object) -> None:
            raise OSError(errno.EMFILE, "Too many open files")

        with capturedLogs() as logs:
            for _ in range(2):
                found = MonkeyPatcher((socket, "socket", none)).runWithPatches(findListener, self.address)
                self.assertIsNone(found)
        (text,) = [formatEvent(event) for event in logs]
        self.assertIn(f"it can't be asked whether {self.address} supports SMC-R", text)
        self.assertIn("ulimit -n", text)

    def test_listenerThatDoesNotOwnTCPSocketIsNotTrusted(self) -> None:
        self.answering(self.address)
        self.patch(announcing, "peerOf", lambda connection: Credentials(1, 65533))
        self.assertIsNone(findListener(self.address))


class AnnouncementTests(Base):
    """A client that announces a connection, and its listener."""

    def channel(self) -> AnnouncementChannel:
        channel = channelTo(cast(Reactor, self.reactor), self.address)
        assert channel is not None
        return channel

    def announce(self, client: TCPAddress = CLIENT) -> Announcement:
        """Announce the address of a client's connection."""
        announcement = Announcement(self.channel(), client)
        self.reported: list[str] = []
        announcement.then(lambda: self.reported.append("answered"))
        return announcement

    def expected(self) -> tuple[Announcements, Announcement]:
        """Return a listener, and an announcement that it has received."""
        announcements, announcement = self.announcements(), self.announce()
        self.reactor.serve()
        return announcements, announcement

    def connected(self, announcement: Announcement) -> None:
        """Connect the client by TCP."""
        announcement.then(lambda: self.reported.append("accepted" if announcement.isAccepted else "plain"))

    def claimed(self, announcements: Announcements) -> Announced:
        """Accept the client's TCP connection at the listener."""
        announced = announcements.claim(CLIENT)
        assert announced is not None
        announced.onWithdrawal = self.withdrawn
        return announced

    def withdrawn(self) -> None:
        """Have the client continue without SMC."""
        self.reported.append("withdrawn")

    def assertNothingLeft(self) -> None:
        """Assert that only the listener is in the reactor when SMC is not in use."""
        self.reactor.serve()
        self.assertEqual(self.reactor.getDelayedCalls(), [])
        self.use.release()
        self.reactor.serve()
        self.assertEqual(len(self.reactor.getReaders()), 1)
        self.assertEqual(self.reactor.getWriters(), [])
        self.assertEqual(self.reactor.getDelayedCalls(), [])

    def test_expectedConnectionIsAcceptedAndNothingRetained(self) -> None:
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

    def test_silentListenerIsAwaitedForLimitedTimeAndRemembered(self) -> None:
        announcements = self.announcements()
        announcement = self.announce()
        self.reactor.advance(ANSWER_SECONDS)
        self.assertEqual((self.reported, announcement.isOver, announcement.user), (["answered"], True, -1))
        self.assertTrue(silentPeers(self.reactor).isSilent(self.address, self.reactor.seconds()))
        self.assertNothingLeft()
        self.assertEqual(announcements.expected, {})

    def test_listenerThatAcceptsTooLateIsNotified(self) -> None:
        announcements, announcement = self.expected()
        self.connected(announcement)
        announced = self.claimed(announcements)
        self.reactor.advance(ANSWER_SECONDS)
        self.assertEqual(self.reported, ["answered", "plain"])
        announced.expect(self.withdrawn)
        self.reactor.serve()
        self.assertEqual(self.reported, ["answered", "plain", "withdrawn"])
        self.assertNothingLeft()

    def test_busyClientReceivesWhatListenerSentInTime(self) -> None:
        announcements, announcement = self.expected()
        self.connected(announcement)
        self.claimed(announcements).expect(self.withdrawn)
        self.reactor.advance(ANSWER_SECONDS + 5)
        self.reactor.serve()
        self.assertEqual(self.reported, ["answered", "accepted"])
        self.assertFalse(silentPeers(self.reactor).isSilent(self.address, self.reactor.seconds()))
        self.assertNothingLeft()

    def test_pauseOfBothProcessesIsNoSilence(self) -> None:
        self.announcements()
        announcement = self.announce()
        self.reactor.advance(ANSWER_SECONDS + 1)
        self.assertEqual(self.reported, [])
        self.reactor.serve()
        self.assertEqual((self.reported, announcement.user), (["answered"], os.geteuid()))
        self.assertFalse(silentPeers(self.reactor).isSilent(self.address, self.reactor.seconds()))
        announcement.forget()
        self.assertNothingLeft()

    def test_silenceIsRecognizedAfterPause(self) -> None:
        self.announcements()
        announcement = self.announce()
        self.reactor.advance(ANSWER_SECONDS + 1)
        self.reactor.advance(ANSWER_SECONDS / 4)
        self.assertEqual((self.reported, announcement.isOver), (["answered"], True))
        self.assertTrue(silentPeers(self.reactor).isSilent(self.address, self.reactor.seconds()))
        self.assertNothingLeft()

    def test_stoppedClientSendsAndLeavesNothing(self) -> None:
        announcements, announcement = self.expected()
        self.assertEqual(list(announcements.expected), [CLIENT])
        self.connected(announcement)
        announcement.forget()
        self.assertNothingLeft()
        self.assertEqual((self.reported, announcements.expected), (["answered"], {}))

    def test_waitingClientIsNotifiedWhenListenerCloses(self) -> None:
        announcements, announcement = self.expected()
        self.connected(announcement)
        announcements.stop()
        self.reactor.serve()
        self.assertEqual(self.reported, ["answered", "plain"])
        self.use.release()
        self.assertEqual(self.reactor.getReaders(), [])
        self.assertEqual(self.reactor.getDelayedCalls(), [])

    def test_listenerIsDistrustedOnceAnotherUserListens(self) -> None:
        announcements, announcement = self.expected()
        self.connected(announcement)
        announcement.listener = Credentials(1, 1000)
        self.patch(owners, "acceptingUsers", lambda target: {1001})
        self.claimed(announcements).expect(self.withdrawn)
        self.reactor.serve()
        self.assertEqual(self.reported, ["answered", "plain", "withdrawn"])
        self.assertNothingLeft()

    def test_listenerWithoutSocketIsTrustedForItsAcceptedSocketOnly(self) -> None:
        announcements = self.announcements()
        announcement = self.announce()
        self.reactor.serve()
        announcement.forget()
        self.patch(owners, "acceptingUsers", lambda target: set())
        for user, outcome in ((None, "plain"), (1001, "plain"), (1000, "accepted")):
            announcement = self.announce()
            self.reactor.serve()
            self.connected(announcement)
            announcement.listener = Credentials(1, 1000)
            found = {(self.address, CLIENT): user}
            self.patch(announcing, "socketUser", lambda *ends, found=found: found.get(ends))
            self.claimed(announcements).expect(self.withdrawn)
            self.reactor.serve()
            self.assertEqual(self.reported[:2], ["answered", outcome])

    def test_secondAnnouncementOfConnectionIsRefused(self) -> None:
        announcements = self.announcements()
        first = self.announce()
        self.reactor.serve()
        second = self.announce()
        self.reactor.serve()
        self.assertEqual((self.reported, second.isOver, second.user), (["answered"], True, -1))
        self.assertEqual(list(announcements.expected), [CLIENT])
        first.forget()

    def test_ownersAnnouncementReplacesAnotherUsers(self) -> None:
        announcements = self.announcements(anybody=True)
        unknownPeer, other, ours = (
            Announced(None, CLIENT, 1, Credentials(1, user)) for user in (65533, 65534, os.geteuid())
        )
        self.assertTrue(announcements.expect(CLIENT, unknownPeer))
        self.assertFalse(announcements.expect(CLIENT, other))
        self.assertTrue(announcements.expect(CLIENT, ours))
        self.assertFalse(announcements.expect(CLIENT, unknownPeer))
        self.assertIs(announcements.claim(CLIENT), ours)

    def test_onlyRootMayAnnounceAnotherUsersConnection(self) -> None:
        with socket.create_connection(self.address) as client:
            own = TCPAddress.of(*client.getsockname())
            user = os.geteuid()
            for who, isFrom in ((user, True), (user + 1, False), (0, True)):
                announced = Announced(None, own, 1, Credentials(1, who))
                self.assertEqual(announced.isFrom(own, self.address), isFrom)

    def test_connectionsOfOtherUsersAreNotAccepted(self) -> None:
        """An announced connection is accepted only if the announcing user, or root, owns its client's end."""
        own = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(own.close)
        announcements = self.announcements()
        for who, isAccepted in ((os.geteuid() + 1, False), (os.geteuid(), True), (0, True)):
            client = socket.create_connection(own.getsockname())
            self.addCleanup(client.close)
            accepted, peer = own.accept()
            self.addCleanup(accepted.close)
            places = {"getPeer": peer, "getHost": own.getsockname()}
            ends = {name: partial(IPv4Address, "TCP", *place) for name, place in places.items()}
            transport = SimpleNamespace(socket=accepted, **ends)
            announced = Announced(None, TCPAddress.of(*client.getsockname()), 1, Credentials(1, who))
            self.assertTrue(announcements.expect(announced.address, announced))
            arrived = announcements.arrived(PeerIdentity(cast(Connection, transport), True))
            self.assertIs(arrived, announced if isAccepted else None, who)
            self.assertEqual(announcements.expected, {})

    def test_failedConnectionsAnnouncementIsNotUsedForNext(self) -> None:
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
        first.close()  # by a reset, so that nothing remains
        second.bind(("127.0.0.1", port))
        second.connect(own.getsockname())
        announcements = self.announcements()
        announced = Announced(None, TCPAddress("127.0.0.1", port), 1, Credentials(os.getpid(), os.geteuid()))
        announcements.expect(announced.address, announced)
        arrivals = []
        for _ in range(2):
            accepted, peer = own.accept()
            self.addCleanup(accepted.close)
            places = {"getPeer": peer, "getHost": own.getsockname()}
            ends = {name: partial(IPv4Address, "TCP", *place) for name, place in places.items()}
            transport = SimpleNamespace(socket=accepted, **ends)
            arrivals.append(announcements.arrived(PeerIdentity(cast(Connection, transport), True)))
        self.assertEqual(arrivals, [None, announced])

    def test_clientWithInvalidMessageIsDisconnected(self) -> None:
        announcements = self.announcements()
        lines = (
            *(b"hello", b"connecting", b"connecting 1 here 5", b"connecting 1 ::1 x", b"connecting x ::1 5"),
            *(b"plain", b"plain x", b"plain 1 2", b"\xff" * 500),
        )
        for line in lines:
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(listenerName(self.address))
                client.send(line + b"\n")
                self.reactor.serve()
                client.setblocking(False)
                self.assertEqual(client.recv(100), b"", line)
        self.assertEqual((announcements.expected, announcements.connections), ({}, set()))
        self.assertNothingLeft()

    def test_otherUsersMayAnnounceOnlyToConfiguredDevice(self) -> None:
        for anybody in (False, True):
            announcements = Announcements(cast(Reactor, self.reactor), anybody)
            self.assertTrue(announcements.isPermitted(os.geteuid()))
            self.assertTrue(announcements.isPermitted(0))
            self.assertEqual(announcements.isPermitted(os.geteuid() + 1), anybody)

    def test_listenerContinuesWithoutNameInUseAndLogsText(self) -> None:
        self.announcements()
        entries: list[str] = []
        warn: Callable[..., None] = lambda text, **fields: entries.append(text.format(**fields))  # noqa: E731
        self.patch(signalling._log, "warn", warn)
        second = Announcements(cast(Reactor, self.reactor), False)
        second.begin(self.address)
        second.stop()
        [entry] = entries
        self.assertIn("plain TCP", entry)
        self.assertTrue(entry.isprintable())

    def test_room(self) -> None:
        """No more connections are accepted at once than TCP's backlog; others are notified of free space."""
        announcements = self.announcements(capacity=10)
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
        self.reactor.advance(1.0)  # a client that does not connect occupies no space any longer
        self.reactor.serve()
        self.assertEqual(expected(), 30)
        for each in many:
            each.forget()
        for one in claimed:
            assert one is not None
            one.settle()
        self.assertNothingLeft()
        self.assertEqual(announcements.expected, {})

    def test_announcedConnectionIsDroppedAfterMinute(self) -> None:
        announcements, announcement = self.expected()
        for _ in range(61):
            self.reactor.advance(1.0)
        self.assertEqual(announcements.expected, {})
        self.assertEqual(self.reactor.getDelayedCalls(), [])
        announcement.forget()
        self.assertNothingLeft()

    def test_clientWaitsLongerForListenerThatAnswersOthers(self) -> None:
        """The listener is slow: it accepts those that connected earlier."""
        announcements = self.announcements()
        count = int(LONGEST_WAIT)
        many = [self.waiting(announcements, 50000 + number) for number in range(count + 1)]
        for number in range(count):
            self.assertFalse(many[-1].isOver)
            self.accept(announcements, many[number])
            self.assertTrue(many[number].isAccepted)
            self.reactor.advance(1.0)
        self.reactor.advance(ANSWER_SECONDS / 4)
        self.assertEqual((many[-1].isOver, many[-1].isAccepted), (True, False))
        self.assertFalse(silentPeers(self.reactor).isSilent(self.address, self.reactor.seconds()))
        self.assertNothingLeft()

    def test_listenerThatExpectsMoreButAcceptsNobodyIsSilent(self) -> None:
        """As if another process that has the TCP socket had accepted all connections."""
        announcements = self.announcements()
        first = self.waiting(announcements, 50000)
        for number in range(int(ANSWER_SECONDS)):
            self.reactor.advance(1.0)
            self.waiting(announcements, 50001 + number)
        self.assertTrue(first.isOver)
        self.assertTrue(silentPeers(self.reactor).isSilent(self.address, self.reactor.seconds()))
        for _ in range(4):
            self.reactor.advance(ANSWER_SECONDS / 4)
        self.assertNothingLeft()

    def test_connectionThatListenerHasPassedOverIsPlain(self) -> None:
        """As if another process that has the TCP socket had accepted the first of the connections."""
        announcements = self.announcements()
        first = self.waiting(announcements, 50000)
        for number in range(int(ANSWER_SECONDS)):
            self.reactor.advance(1.0)
            next_ = self.waiting(announcements, 50001 + number)
            self.accept(announcements, next_)
            self.assertTrue(next_.isAccepted)
        self.reactor.advance(ANSWER_SECONDS / 4)
        self.assertTrue(first.isOver)
        self.assertTrue(silentPeers(self.reactor).isSilent(self.address, self.reactor.seconds()))
        self.assertNothingLeft()

    def test_listenerThatClientDoesNotAwaitIsSilent(self) -> None:
        """
        A client whose timeout is shorter than the one for answers uses plain TCP next time.

        The first announcement is not expected, and the second one is expected, but not accepted.
        """
        for isExpected in (False, True):
            announcements = self.announcements()
            announcement = self.waiting(announcements, 50000) if isExpected else self.announce()
            self.reactor.advance(ANSWER_SECONDS / 4)
            announcement.abandon()
            self.assertTrue(silentPeers(self.reactor).isSilent(self.address, self.reactor.seconds()))
            silentPeers(self.reactor).answered(self.address)
            announcements.stop()

    def test_listenerOfClientThatEndsAtOnceIsNotSilent(self) -> None:
        self.announcements()
        self.announce().abandon()
        self.assertFalse(silentPeers(self.reactor).isSilent(self.address, self.reactor.seconds()))

    def waiting(self, announcements: Announcements, port: int) -> Announcement:
        """Announce a connection from a port, which connects as soon as it is expected, and then waits."""
        announcement = Announcement(self.channel(), CLIENT._replace(port=port))
        announcement.then(lambda: announcement.then(lambda: None))
        self.reactor.serve()
        self.assertIn(CLIENT._replace(port=port), announcements.expected)
        return announcement

    def accept(self, announcements: Announcements, announcement: Announcement) -> None:
        """Accept a connection at the listener, and let the client read that."""
        announced = announcements.claim(announcement._client)
        assert announced is not None
        announced.expect(lambda: None)
        self.reactor.serve()

    def test_connectionsToListenerAreAnnouncedOnOneSocket(self) -> None:
        announcements = self.announcements()
        first = self.channel()
        self.reactor.serve()
        self.assertIs(self.channel(), first)
        self.assertEqual(len(announcements.connections), 1)
        announcements.stop()
        self.assertIsNone(channelTo(cast(Reactor, self.reactor), self.address))
        announcements.begin(self.address)
        self.assertIsNot(self.channel(), first)

    def test_clientIsNotifiedWhenListenerClosesDuringAnnouncement(self) -> None:
        announcements = self.announcements()
        self.announce().forget()
        self.reactor.serve()
        announcement = self.announce()
        announcements.stop()
        announcements.begin(self.address)
        self.reactor.serve()
        self.assertEqual((self.reported, announcement.wasCut, announcement.user), (["answered"], True, -1))
        self.assertNothingLeft()

    def test_socketRemovedFromReactorIsAddedAtNextUse(self) -> None:
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
        # The listener's end was removed as well.
        self.assertEqual((self.reported, announcement.user), ([], -1))
        self.assertIn(announcement._channel._lines, self.reactor.getReaders())
        announcement.forget()

    def test_otherUsersUseBoundedNumberOfDescriptors(self) -> None:
        """Processes of other users beyond a limit are disconnected; one of the same user is not."""
        self.patch(signalling, "_MOST_OTHER_USERS", 2)
        announcements = self.announcements(anybody=True)
        self.patch(signalling, "processAt", lambda connection: Credentials(1, 65533))
        clients = [socket.socket(socket.AF_UNIX) for _ in range(4)]
        for client in clients:
            self.addCleanup(client.close)
            client.connect(listenerName(self.address))
            client.setblocking(False)  # an end that is not closed fails the test
        self.patch(unixsockets, "peerOf", lambda connection: Credentials(1, 65533))
        self.reactor.serve()
        self.assertEqual(len(announcements.connections), 2)
        self.assertEqual([client.recv(1) for client in clients[2:]], [b""] * 2)
        for module, name in ((signalling, "processAt"), (unixsockets, "peerOf")):
            self.patch(module, name, lambda connection: Credentials(2, os.geteuid()))
        ours = socket.socket(socket.AF_UNIX)
        self.addCleanup(ours.close)
        ours.connect(listenerName(self.address))
        self.reactor.serve()
        self.assertEqual(len(announcements.connections), 3)

    def test_otherUsersAreBounded(self) -> None:
        """Another user can announce a bounded number of connections; those of the same user go first."""
        announcements = self.announcements(anybody=True, capacity=1)
        near, far = socket.socketpair(socket.AF_UNIX)
        self.addCleanup(far.close)
        unknownPeer = AnnouncementConnection(announcements, near)
        unknownPeer.client = Credentials(1, 65533)
        for number in range(200):
            unknownPeer.obey(b"connecting %d 127.0.0.1 %d" % (number, 1000 + number))
        self.assertEqual(len(announcements.expected), signalling._MOST_OF_OTHER_USER)
        near, far = socket.socketpair(socket.AF_UNIX)
        self.addCleanup(far.close)
        ours = AnnouncementConnection(announcements, near)
        ours.obey(b"connecting 1 127.0.0.1 9999")
        announcements.connections.update((unknownPeer, ours))
        announcements.forget(announcements.expected[TCPAddress.of("127.0.0.1", 1000)])
        self.assertIn(announcements.expected[TCPAddress.of("127.0.0.1", 9999)], announcements._admitted)

    def test_sameUserIsBounded(self) -> None:
        """A process of the same user can announce a bounded number of connections; the others are refused."""
        self.patch(signalling, "_MOST_EXPECTED", 3)
        announcements = self.announcements()
        near, far = socket.socketpair(socket.AF_UNIX)
        self.addCleanup(far.close)
        process = AnnouncementConnection(announcements, near)
        announcements.connections.add(process)
        for number in range(5):
            process.obey(b"connecting %d 127.0.0.1 %d" % (number, 1000 + number))
        self.assertEqual(len(announcements.expected), 3)
        self.assertEqual(list(process.open), [0, 1, 2])

    def test_clientThatDisappearsIsDropped(self) -> None:
        announcements, announcement = self.expected()
        announcement._channel._lines.close()
        self.assertNothingLeft()
        self.assertEqual(announcements.expected, {})
