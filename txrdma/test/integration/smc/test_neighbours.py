"""
The C{local} signalling method by a directory: which listeners are found, and what they prove.

Both ends are in one network namespace here; the client treats its own address as one of another namespace.
"""

from __future__ import annotations

import os
import socket
import stat
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from shutil import rmtree
from typing import Any, cast
from unittest.mock import patch

from twisted.trial.unittest import SynchronousTestCase

from txrdma.smc.common.reactoruse import reactorUse
from txrdma.smc.signalling import local as signalling
from txrdma.smc.signalling import localsignal, neighbours
from txrdma.smc.signalling import netns as seeking
from txrdma.smc.signalling.interfaces import IDialing
from txrdma.smc.signalling.local import Announcements
from txrdma.smc.signalling.localclient import (
    Announcement,
    AnnouncementChannel,
    ANSWER_SECONDS,
    knownChannel,
)
from txrdma.smc.signalling.neighbours import (
    AnnouncedNeighbour,
    listenersAt,
    Neighbour,
    NeighbourAnnouncements,
)
from txrdma.smc.signalling.netns import NeighbourApproach, seek
from txrdma.smc.signalling.owners import TCPAddress
from txrdma.smc.signalling.silence import silentPeers, SPAN
from txrdma.test.integration.smc.test_local import PumpedReactor
from txrdma.unix import socketdirectory
from txrdma.unix import sockets as unixsockets
from txrdma.unix.socketdirectory import SocketDirectory
from txrdma.unix.sockets import Credentials, Reactor

TARGET = TCPAddress("127.0.0.1", 8080)


class PlaceTestCase(SynchronousTestCase):
    def setUp(self) -> None:
        self.reactor = PumpedReactor()
        self.use = reactorUse(self.reactor).hold()
        self.addCleanup(self.use.release)
        path = tempfile.mkdtemp(prefix="txr")
        self.addCleanup(rmtree, path)
        self.directory = SocketDirectory(path)


class SocketDirectoryTests(PlaceTestCase):
    def publish(self, name: str = "smc-1-a") -> socket.socket:
        listening = self.directory.publish(socket.SOCK_STREAM, name, 5)
        self.addCleanup(listening.close)
        return listening

    def test_directoryContainsOnlyNamesOfListeners(self) -> None:
        self.publish()
        self.assertEqual(os.listdir(self.directory.path), ["smc-1-a"])
        self.assertEqual(self.directory.names("smc-1-"), ["smc-1-a"])
        self.assertEqual(self.directory.names("smc-11-"), [])
        found = self.directory.connect(socket.SOCK_STREAM, "smc-1-a")
        assert found is not None
        found.close()

    def test_nameBelongsToFirstOwner(self) -> None:
        self.publish()
        self.assertRaises(FileExistsError, self.directory.publish, socket.SOCK_STREAM, "smc-1-a", 5)
        self.assertEqual(os.listdir(self.directory.path), ["smc-1-a"])

    def test_replacedSocketCannotChangeModeOfOtherFile(self) -> None:
        os.chmod(self.directory.path, 0o2770)
        other = os.path.join(self.directory.path, "other")
        with open(other, "w"):
            os.chmod(other, 0o600)
        replaced: list[str] = []

        class Socket(socket.socket):
            def bind(self, address: Any) -> None:
                super().bind(address)
                os.unlink(address)
                os.symlink(other, address)
                replaced.append(address)

        self.patch(socket, "socket", Socket)
        self.assertRaises(OSError, self.publish)
        self.assertEqual(len(replaced), 1)
        self.assertEqual(stat.S_IMODE(os.stat(other).st_mode), 0o600)
        self.assertEqual(os.listdir(self.directory.path), ["other"])

    def test_otherUsersConnectOnlyBySetGroupIDDirectory(self) -> None:
        self.publish("one")
        os.chmod(self.directory.path, 0o770)
        self.publish("two")
        os.chmod(self.directory.path, 0o2770)
        self.publish("three")
        modes = [os.stat(f"{self.directory.path}/{each}").st_mode & 0o777 for each in ("one", "two", "three")]
        self.assertEqual(modes, [0o600, 0o600, 0o660])

    def test_firstSearchRemovesNameOfEndedProcess(self) -> None:
        self.publish().close()
        self.assertIsNone(self.directory.connect(socket.SOCK_STREAM, "smc-1-a"))
        self.assertEqual(os.listdir(self.directory.path), [])

    def test_onlyNameOfEndedProcessIsReplaced(self) -> None:
        self.publish().close()
        again = self.publish()
        self.assertRaises(FileExistsError, self.publish)
        self.assertEqual(os.listdir(self.directory.path), ["smc-1-a"])
        again.close()

    def test_nameTakenDuringSearchStays(self) -> None:
        self.publish().close()
        os.utime(f"{self.directory.path}/smc-1-a", (1, 1))

        def connectSlowly(kind: int, name: str | bytes) -> socket.socket:
            try:
                return unixsockets.connectTo(kind, name)
            except OSError:
                os.unlink(name)
                self.publish()
                raise

        with patch.object(socketdirectory, "connectTo", connectSlowly):
            self.assertIsNone(self.directory.connect(socket.SOCK_STREAM, "smc-1-a"))
        found = self.directory.connect(socket.SOCK_STREAM, "smc-1-a")
        assert found is not None
        found.close()

    def checkTaken(self, remove: Callable[[], object]) -> None:
        """Check that a name stays which a process takes just before another one would remove it."""
        self.publish().close()
        examine, examined = SocketDirectory._identityOf, 0

        def identityOf(directory: SocketDirectory, name: str) -> tuple[int, int] | None:
            nonlocal examined
            found = examine(directory, name)
            examined += 1
            if examined == 2:
                os.unlink(f"{directory.path}/{name}")
                self.publish()
            return found

        with patch.object(SocketDirectory, "_identityOf", identityOf):
            remove()
        self.assertEqual(os.listdir(self.directory.path), ["smc-1-a"])
        found = self.directory.connect(socket.SOCK_STREAM, "smc-1-a")
        assert found is not None
        found.close()

    def test_nameTakenAfterSearchStays(self) -> None:
        self.checkTaken(lambda: self.directory.connect(socket.SOCK_STREAM, "smc-1-a"))

    def test_nameTakenByOneOfTwoStartingProcessesStays(self) -> None:
        self.checkTaken(lambda: self.assertRaises(FileExistsError, self.publish))

    def test_fileThatIsNoSocketIsNotTouched(self) -> None:
        Path(self.directory.path, "smc-1-a").write_text("somebody's")
        self.assertIsNone(self.directory.connect(socket.SOCK_STREAM, "smc-1-a"))
        self.assertEqual(os.listdir(self.directory.path), ["smc-1-a"])

    def test_unmappedUsersAreNotEqual(self) -> None:
        self.publish()
        for module in (unixsockets, socketdirectory):
            self.patch(module, "unmapped", lambda: frozenset({os.geteuid(), os.getegid()}))
        self.assertIsNone(self.directory.connect(socket.SOCK_STREAM, "smc-1-a"))
        os.chmod(self.directory.path, 0o2770)
        self.assertIsNone(self.directory.connect(socket.SOCK_STREAM, "smc-1-a"))

    def test_withoutDirectoryNothingIsFoundAndPublishingFails(self) -> None:
        nowhere = SocketDirectory(self.directory.path + "/nowhere")
        self.assertEqual(nowhere.names(""), [])
        self.assertIsNone(nowhere.connect(socket.SOCK_STREAM, "x"))
        self.assertRaises(OSError, nowhere.publish, socket.SOCK_STREAM, "x", 5)


class Client:
    """A client that is about to connect."""

    target = TARGET
    socket: socket.socket


class ProofTests(PlaceTestCase):
    """A search, and the listeners that it queries."""

    def setUp(self) -> None:
        super().setUp()
        self.patch(seeking, "sourceFor", lambda target: None)
        self.found: list[AnnouncementChannel | None] = []

    def listener(self) -> Announcements:
        """Return a listener in the directory."""
        reactor = cast(Reactor, self.reactor)
        announcements = NeighbourAnnouncements(reactor, False, self.directory)
        announcements.beginNeighbours(TARGET)
        self.addCleanup(self.reactor.serve)
        self.addCleanup(announcements.stop)
        return announcements

    def seek(self, target: TCPAddress = TARGET) -> bool:
        return seek(cast(Reactor, self.reactor), self.directory, target, self.found.append) is not None

    def search(self) -> AnnouncementChannel | None:
        self.assertTrue(self.seek())
        self.reactor.serve()
        [found] = self.found
        return found

    def waitForAnswer(self) -> None:
        """Let the time for answers pass, in which the client is not busy."""
        for _ in range(20):
            self.reactor.advance(ANSWER_SECONDS / 20)

    def assertUnproven(self) -> None:
        """Assert that a search ends without a listener, after the time for answers."""
        self.assertTrue(self.seek())
        self.reactor.serve()
        self.assertEqual(self.found, [])
        self.waitForAnswer()
        self.assertEqual(self.found, [None])

    def test_listenerThatReceivesTokenIsTrusted(self) -> None:
        announcements = self.listener()
        channel = self.search()
        assert channel is not None
        self.assertEqual((channel.source.host, channel.directory), ("127.0.0.1", self.directory.path))
        announcement = Announcement(channel, TCPAddress("127.0.0.1", 40000))
        self.reactor.serve()
        self.assertEqual(announcement.user, os.geteuid())
        announced = announcements.claim(TCPAddress("127.0.0.1", 40000))
        assert isinstance(announced, AnnouncedNeighbour)
        self.assertEqual(announced.directory, self.directory.path)
        self.assertTrue(announced.isFrom(TCPAddress("127.0.0.1", 40000), TARGET))
        self.assertFalse(announced.isFrom(TCPAddress("127.0.0.1", 40001), TARGET))
        self.assertFalse(announced.isFrom(TCPAddress("127.0.0.1", 40000), TCPAddress("127.0.0.2", 8080)))
        announced.expect(lambda: None)
        self.reactor.serve()
        self.assertTrue(announcement.isAccepted)

    def test_addressMovesToAnotherListener(self) -> None:
        """A listener that accepts no announced connection must prove its address again."""
        self.listener()
        channel = self.search()
        assert channel is not None
        announcement = Announcement(channel, TCPAddress("127.0.0.1", 40000))
        announcement.then(lambda: announcement.then(lambda: None))
        self.reactor.serve()
        self.assertEqual(announcement.user, os.geteuid())
        self.reactor.advance(ANSWER_SECONDS)
        self.assertTrue(announcement.isOver)
        self.assertIsNone(knownChannel(cast(Reactor, self.reactor), TARGET, self.directory.path))
        self.found.clear()
        self.assertIsNotNone(self.search())
        self.assertNotIn(channel._lines, self.reactor.getReaders())

    def test_sourceAddressChanges(self) -> None:
        """A client that has lost its address proves the new one with the next connection."""
        self.patch(localsignal, "channelTo", lambda reactor, target: None)
        self.listener()
        channel = self.search()
        assert channel is not None
        channel.source = TCPAddress("192.0.2.1", 0)
        client = Client()
        client.socket = socket.socket()
        self.addCleanup(client.socket.close)
        approach = NeighbourApproach(cast(Reactor, self.reactor), True, self.directory)
        proceeded: list[TCPAddress] = []
        approach.prepare(cast(IDialing, client), partial(proceeded.append, TARGET))
        self.assertEqual(proceeded, [TARGET])
        self.assertIsNone(knownChannel(cast(Reactor, self.reactor), TARGET, self.directory.path))
        self.found.clear()
        self.assertIsNotNone(self.search())
        self.assertNotIn(channel._lines, self.reactor.getReaders())

    def test_announcementFromUnprovenAddressEndsExchange(self) -> None:
        announcements = self.listener()
        channel = self.search()
        assert channel is not None
        announcement = Announcement(channel, TCPAddress("127.0.0.9", 40000))
        self.reactor.serve()
        self.assertTrue(announcement.isOver)
        self.assertFalse(announcement.isAccepted)
        self.assertEqual(announcements.expected, {})

    def test_nothingCanBeAnnouncedBeforeProof(self) -> None:
        announcements = self.listener()
        [name] = os.listdir(self.directory.path)
        liar = socket.socket(socket.AF_UNIX)
        self.addCleanup(liar.close)
        liar.connect(f"{self.directory.path}/{name}")
        liar.send(b"seeking 127.0.0.1\nconnecting 1 127.0.0.1 40000\n")
        self.reactor.serve()
        self.assertEqual(announcements.expected, {})
        self.assertEqual(announcements.connections, set())

    def test_addressWithZoneEndsExchange(self) -> None:
        """An address with a name of an interface, which may be any text, is not passed to the resolver."""
        announcements = self.listener()
        [name] = os.listdir(self.directory.path)
        for line in (b"seeking 127.0.0.1%\0\n", b"seeking 127.0.0.1%lo\n", b"seeking fe80::1%lo\n"):
            liar = socket.socket(socket.AF_UNIX)
            self.addCleanup(liar.close)
            liar.connect(f"{self.directory.path}/{name}")
            liar.send(line)
            self.reactor.serve()
            self.assertEqual(announcements.connections, set())

    def test_clientsBeyondLimitAreClosed(self) -> None:
        """
        Too many processes of other users, or of this user without an announcement, are disconnected.

        Processes of other users do not delay those of this user.
        """
        self.patch(neighbours, "_MOST_PROVING", 2)
        announcements = self.listener()
        [name] = os.listdir(self.directory.path)

        def connect() -> socket.socket:
            client = socket.socket(socket.AF_UNIX)
            self.addCleanup(client.close)
            client.connect(f"{self.directory.path}/{name}")
            self.reactor.serve()
            return client

        with patch.object(neighbours, "isTrusted", lambda user: False):
            strangers = [connect() for _ in range(4)]
        self.assertEqual(len(announcements.connections), 2)
        for each in announcements.connections:
            cast(Neighbour, each)._source = "127.0.0.1"  # proved
        with patch.object(neighbours, "isTrusted", lambda user: False):
            strangers.append(connect())
        self.assertEqual([each.recv(1) for each in strangers[2:]], [b""] * 3)
        ours = [connect() for _ in range(3)]
        self.assertEqual(len(announcements.connections), 4)
        self.assertEqual(ours[2].recv(1), b"")

    def test_neighboursTakeNoSpaceOfLocalProcesses(self) -> None:
        """Processes of other users in other network namespaces and in this one have separate limits."""
        self.patch(signalling, "_MOST_OTHER_USERS", 2)
        reactor = cast(Reactor, self.reactor)
        announcements = NeighbourAnnouncements(reactor, True, self.directory)
        announcements.beginNeighbours(TARGET)
        self.addCleanup(announcements.stop)
        for _ in range(3):
            near, far = socket.socketpair()
            self.addCleanup(far.close)
            with patch.object(signalling, "processAt", lambda connection: Credentials(1, os.geteuid() + 1)):
                announcements._met(near)
        self.assertEqual(len(announcements.connections), 3)
        self.assertTrue(announcements.isPermitted(os.geteuid() + 1))

    def test_simultaneousConnectionsShareSearch(self) -> None:
        self.listener()
        for _ in range(3):
            self.assertTrue(self.seek())
        self.reactor.serve()
        self.assertEqual(len(set(self.found)), 1)
        self.assertEqual(len(self.found), 3)
        self.assertIsNotNone(self.found[0])

    def test_listenerThatReceivesTokenIsFoundAmongTwo(self) -> None:
        right = self.listener()
        wrong = self.listener()
        genuine = Neighbour._challengeReceived

        def wordCame(neighbour: Neighbour, data: bytes, sender: tuple[object, ...]) -> None:
            if neighbour in right.connections:  # the other one receives its datagrams elsewhere
                genuine(neighbour, data, sender)

        self.patch(Neighbour, "_challengeReceived", wordCame)
        self.assertIsNotNone(self.search())
        self.assertEqual(len(right.connections), 1)
        self.reactor.serve()
        self.assertEqual(wrong.connections, set())

    def test_listenersBeyondLimitAreNotQueried(self) -> None:
        self.patch(seeking, "_MOST_QUERIED", 2)
        queried: list[object] = []
        genuine = seeking._Candidate

        def candidate(*arguments: Any) -> Any:
            queried.append(arguments)
            return genuine(*arguments)

        self.patch(seeking, "_Candidate", candidate)
        for _ in range(4):
            self.listener()
        self.assertIsNotNone(self.search())
        self.assertEqual(len(queried), 2)

    def test_listenerThatReturnsNoTokenIsNotTrusted(self) -> None:
        self.listener()
        genuine = neighbours.ProvingSocket.send

        def send(proof: neighbours.ProvingSocket, word: bytes, target: object = None) -> None:
            genuine(proof, word if target is None else b"another word", target)  # type: ignore[arg-type]  # as it came

        self.patch(neighbours.ProvingSocket, "send", send)
        self.assertUnproven()

    def test_translatedClientAddressMeansTCP(self) -> None:
        self.listener()

        def wordCame(neighbour: Neighbour, data: bytes, sender: tuple[object, ...]) -> None:
            assert neighbour._proof is not None
            neighbour._proof.send(neighbour._nonces[1], sender)
            neighbour.lines.send(b"proven 127.0.0.9 " + neighbour._nonces[1])

        self.patch(Neighbour, "_challengeReceived", wordCame)
        self.assertUnproven()

    def test_lostTokensAreSentAgain(self) -> None:
        self.listener()
        genuine = neighbours.ProvingSocket.send
        lost: list[bytes] = []

        def send(proof: neighbours.ProvingSocket, word: bytes, target: object = None) -> None:
            if len(lost) < 3:
                lost.append(word)
            else:
                genuine(proof, word, target)  # type: ignore[arg-type]  # as it came

        self.patch(neighbours.ProvingSocket, "send", send)
        self.assertTrue(self.seek())
        for _ in range(5):
            self.reactor.serve()
            self.reactor.advance(0.11)
        self.reactor.serve()
        [found] = self.found
        self.assertIsNotNone(found)

    def test_repeatedTokenIsReportedOnce(self) -> None:
        """A listener that was busy reads several tokens, but a channel follows the first line about them."""
        self.listener()
        [name] = os.listdir(self.directory.path)
        client = socket.socket(socket.AF_UNIX)
        self.addCleanup(client.close)
        client.connect(f"{self.directory.path}/{name}")
        client.send(b"seeking 127.0.0.1\n")
        self.reactor.serve()
        _, port, nonce = client.recv(100).split()
        datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.addCleanup(datagrams.close)
        datagrams.connect(("127.0.0.1", int(port)))
        for _ in range(3):
            datagrams.send(nonce)
        self.reactor.serve()
        answers = {datagrams.recv(100) for _ in range(3)}
        self.assertEqual(client.recv(1000).split(b"\n"), [b"proven 127.0.0.1 " + answers.pop(), b""])
        self.assertEqual(answers, set())

    def test_notMine(self) -> None:
        """An address without listener is queried once, until new listeners appear or some time has passed."""
        self.listener()
        target = TCPAddress("192.0.2.1", 8080)
        self.assertTrue(self.seek(target))
        self.reactor.serve()
        self.assertEqual(self.found, [None])
        self.assertFalse(self.seek(target))
        self.listener()
        self.assertTrue(self.seek(target))
        self.reactor.serve()
        self.assertFalse(self.seek(target))
        self.reactor.advance(11)
        self.assertTrue(self.seek(target))
        self.reactor.serve()

    def test_silentListenerCostsItsTimeoutOnce(self) -> None:
        stopped = self.directory.publish(socket.SOCK_STREAM, listenersAt(8080) + "x", 5)
        self.addCleanup(stopped.close)
        self.assertTrue(self.seek())
        self.waitForAnswer()
        self.assertEqual(self.found, [None])
        self.assertTrue(silentPeers(self.reactor).isSilent(TARGET, self.reactor.seconds()))

    def test_pauseOfBothProcessesIsNoSilence(self) -> None:
        """A client that was busy, or paused like the listener, reads the answers before it gives up."""
        self.listener()
        self.assertTrue(self.seek())
        self.reactor.advance(ANSWER_SECONDS + 1)
        self.assertEqual(self.found, [])
        self.reactor.serve()
        [found] = self.found
        self.assertIsNotNone(found)
        self.assertFalse(silentPeers(self.reactor).isSilent(TARGET, self.reactor.seconds()))

    def test_silenceIsRecognizedAfterPause(self) -> None:
        stopped = self.directory.publish(socket.SOCK_STREAM, listenersAt(8080) + "x", 5)
        self.addCleanup(stopped.close)
        self.assertTrue(self.seek())
        self.reactor.advance(ANSWER_SECONDS + 1)
        self.assertEqual(self.found, [])
        self.reactor.advance(ANSWER_SECONDS / 4)
        self.assertEqual(self.found, [None])
        self.assertTrue(silentPeers(self.reactor).isSilent(TARGET, self.reactor.seconds()))

    def test_abandonedSearchLeavesNothing(self) -> None:
        self.listener()
        search = seek(cast(Reactor, self.reactor), self.directory, TARGET, self.found.append)
        assert search is not None
        search.abandon()
        self.assertEqual(self.found, [None])
        self.reactor.serve()
        self.assertEqual(self.reactor.getDelayedCalls(), [])

    def cancel(self, end: Callable[[NeighbourApproach], object]) -> None:
        """Abandon a connection during the search; neither continues."""
        self.patch(localsignal, "channelTo", lambda reactor, target: None)
        self.listener()
        approach = NeighbourApproach(cast(Reactor, self.reactor), True, self.directory)
        proceeded: list[str] = []
        approach.prepare(cast(IDialing, Client()), lambda: proceeded.append("on"))
        end(approach)
        self.reactor.serve()
        self.assertEqual(proceeded, [])
        self.assertEqual(self.reactor.getDelayedCalls(), [])

    def test_connectionClosedDuringSearchIsClosed(self) -> None:
        self.cancel(lambda approach: approach.close())

    def test_connectionCancelledDuringSearchIsCancelled(self) -> None:
        self.cancel(lambda approach: approach.failed(None))

    def test_searchThatClientDoesNotAwaitIsNotRepeated(self) -> None:
        """A client whose timeout is shorter than a search connects next time, though a process is stopped."""
        self.patch(localsignal, "channelTo", lambda reactor, target: None)
        stopped = self.directory.publish(socket.SOCK_STREAM, listenersAt(8080) + "x", 5)
        self.addCleanup(stopped.close)
        proceeded: list[int] = []
        for number in range(2):
            approach = NeighbourApproach(cast(Reactor, self.reactor), True, self.directory)
            approach.prepare(cast(IDialing, Client()), partial(proceeded.append, number))
            self.reactor.advance(ANSWER_SECONDS / 4)
            if number not in proceeded:
                approach.failed(TimeoutError())
        self.assertEqual(proceeded, [1])
        self.assertEqual(self.reactor.getDelayedCalls(), [])

    def test_oneConnectionRepeatsSearchWithoutAnswer(self) -> None:
        """After the time of silence, one connection waits for a stopped process, and the others do not."""
        self.patch(localsignal, "channelTo", lambda reactor, target: None)
        stopped = self.directory.publish(socket.SOCK_STREAM, listenersAt(8080) + "x", 5)
        self.addCleanup(stopped.close)
        silentPeers(self.reactor).timedOut(TARGET, self.reactor.seconds())
        self.reactor.advance(SPAN)
        proceeded: list[int] = []
        approaches = [NeighbourApproach(cast(Reactor, self.reactor), True, self.directory) for _ in range(3)]
        for number, approach in enumerate(approaches):
            approach.prepare(cast(IDialing, Client()), partial(proceeded.append, number))
        self.assertEqual(proceeded, [1, 2])
        self.waitForAnswer()
        self.assertEqual(proceeded, [1, 2, 0])

    def test_listenersAtOtherPortAreNotQueried(self) -> None:
        self.listener()
        self.assertFalse(self.seek(TCPAddress("127.0.0.1", 808)))

    def test_localListenersAreFoundByAbstractNames(self) -> None:
        self.listener()
        self.patch(seeking, "sourceFor", lambda target: TCPAddress("127.0.0.1", 0))
        self.assertFalse(self.seek())
