"""
Alternate paths of connections with queue pairs: loaded by the application; devices migrate by themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from hashlib import sha256
from random import Random
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

from twisted.internet.defer import Deferred
from twisted.internet.error import CannotListenError, ConnectionDone
from twisted.logger import capturedLogs, formatEvent
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from txrdma.cm.connections import migration, sendqueue
from txrdma.cm.connections.endpoints import AUTOMATIC, Automatic
from txrdma.cm.core.alternate import Alternate
from txrdma.cm.layouts.messages import APStatus
from txrdma.cm.layouts.paths import isPath, pathFor, reversedPath
from txrdma.cm.manager import ConnectionManager
from txrdma.cm.terms import Terms
from txrdma.error import DeviceUnavailable, InvalidRequest, Refused
from txrdma.iba.path import IBPath
from txrdma.iba.types import GID
from txrdma.iba.verbs import QPAttributes
from txrdma.messages.protocol import MessageFactory, MessageProtocol
from txrdma.sim.network import Faults
from txrdma.soft.core.queuepair import SoftQueuePair
from txrdma.test.support.cm.messaging import MessagingCase
from txrdma.testing.protocols import MessageRecorder

BLOCK = 1 << 14
TERMS = Terms(messageBytes=BLOCK, receives=8, sends=8)


class Hashing(MessageRecorder):
    """A protocol that counts and hashes received bytes."""

    answersToPaths: list[bool]

    def connectionMade(self) -> None:
        super().connectionMade()
        self.length, self.hash = 0, sha256()
        self.answersToPaths = []

    def alternatePathRequested(self, path: Any) -> bool:
        """Return the next answer, by default True."""
        return self.answersToPaths.pop(0) if self.answersToPaths else True

    def messageReceived(self, data: bytes, immediate: int | None) -> None:
        self.length += len(data)
        self.hash.update(data)


def refusing(real: Callable[[Any, QPAttributes], None], pair: Any, attributes: QPAttributes) -> None:
    """Modify a queue pair of a device that cannot migrate."""
    if attributes.migrationState is not None:
        raise InvalidRequest("this device has no path migration")
    real(pair, attributes)


def refuseMigration(test: SynchronousTestCase, end: MessageRecorder) -> None:
    """Let the device of one end refuse alternate paths."""
    pair = end.transport._pair
    real = pair.modify
    test.patch(pair, "modify", lambda attributes: refusing(lambda _, each: real(each), pair, attributes))


class TwoPortCase(MessagingCase):
    addresses = (("10.0.1.1", "10.0.2.1"), ("10.0.1.2", "10.0.2.2"))

    def cut(self, number: int) -> None:
        self.network.partition(*(each[number] for each in self.addresses))

    def mend(self, number: int) -> None:
        self.network.join(*(each[number] for each in self.addresses))

    def made(self, answer: bytes = b"") -> MessageRecorder:
        self.served.append(Hashing(answer))
        return self.served[-1]


class MessageOnly(MessageProtocol):
    """A protocol that uses only C{IMessageProtocol}, as over C{btl:}."""

    transport: Any = None

    def __init__(self) -> None:
        self.messages: list[bytes] = []
        self.ends: list[str] = []

    def messageReceived(self, data: bytes, immediate: int | None) -> None:
        self.messages.append(data)

    def connectionLost(self, reason: Failure) -> None:
        assert reason.type is not None
        self.ends.append(reason.type.__name__)


class MessageOnlyTests(TwoPortCase):
    """Protocols that use only messages."""

    def test_optional(self) -> None:
        """Protocols without private data and reports work, also when paths are loaded and the peer writes."""
        client, server = MessageOnly(), MessageOnly()
        self.serve(MessageFactory(lambda: server), TERMS)
        self.result(self.connectBy(self.path(), MessageFactory(lambda: client), terms=TERMS))
        self.wait(lambda: server.transport)
        self.assertEqual(client.transport.getPeer().privateData, b"")
        self.result(client.transport.loadAlternatePath(self.path(1)))
        self.cut(0)
        shared = [end.transport.share(100) for end in (client, server)]
        for end, memory in ((client, shared[1]), (server, shared[0])):
            end.transport.write(memory.name, b"hello", 0, 7)
            end.transport.sendMessage(b"after the write")
        self.wait(lambda: client.messages and server.messages, 600.0)
        self.assertEqual([bytes(memory.view[:5]) for memory in shared], [b"hello"] * 2)
        self.assertIsNone(client.transport.alternate)
        self.assertEqual(client.transport.path.remoteGID, self.path(1).dgid)
        client.transport.loseConnection()
        self.wait(lambda: client.ends and server.ends)
        self.assertEqual((client.ends, server.ends), (["ConnectionDone"], ["ConnectionDone"]))


class CutTests(TwoPortCase):
    """
    Transfers while the path in use is cut twice.

    @ivar totalBytes: multiple of four blocks.
    """

    totalBytes = 4 << 20

    def transfer(self) -> None:
        """Send everything, and cut the path in use twice, while a quarter of the data is in flight."""
        client, server = self.connected(TERMS, TERMS)
        assert isinstance(server, Hashing)
        random, expected, sent = Random(7), sha256(), 0
        quarter = self.totalBytes // 4

        def feed() -> None:
            nonlocal sent
            for _ in range(quarter // BLOCK):
                block = random.randbytes(BLOCK)
                expected.update(block)
                client.transport.sendMessage(block)
            sent += quarter

        def arrived(total: int) -> None:
            self.wait(lambda: server.length >= total or server.lost or client.lost, 600.0)
            self.assertEqual((client.lost, server.lost), ([], []))

        paths = [self.path(0), self.path(1)]
        for turn in range(2):
            here, there = turn % 2, 1 - turn % 2
            loaded = self.result(client.transport.loadAlternatePath(paths[there]))
            self.assertEqual(loaded, pathFor(paths[there], rate=loaded.packetRate))
            self.assertEqual(server.transport.alternate, reversedPath(loaded))
            feed()
            arrived(sent - quarter // 2)
            self.cut(here)
            feed()
            self.wait(lambda count=turn + 1: len(client.paths) == len(server.paths) == count)  # type: ignore[misc]  # a lambda
            self.assertLess(server.length, sent)
            self.assertEqual((client.transport.path, client.transport.alternate), (loaded, None))
            self.assertEqual((client.paths[-1], server.paths[-1]), (loaded, reversedPath(loaded)))
            arrived(sent)
            self.mend(here)
        self.assertEqual((server.length, server.hash.digest()), (self.totalBytes, expected.digest()))
        client.transport.loseConnection()
        self.wait(lambda: server.lost)
        server.lost[0].trap(ConnectionDone)
        self.assertNothingLeft()

    def test_twoCutsLoseNoData(self) -> None:
        """All bytes arrive, once and in order, on the remaining paths."""
        self.transfer()

    def test_twoCutsOfLossyPaths(self) -> None:
        """All bytes arrive, once and in order, on paths that lose, duplicate and reorder packets."""
        self.network.faults = Faults(loss=0.001, duplication=0.001, jitterSeconds=30e-6)
        self.transfer()


class MigrationTests(TwoPortCase):
    """Alternate paths that are loaded after the connection was established."""

    def assertRefused(self, status: APStatus, client: MessageRecorder, *path: IBPath) -> None:
        """Load an alternate path, which the peer refuses."""
        self.assertEqual(self.failure(client.transport.loadAlternatePath(*path), Refused).status, status)

    def test_pathFromAnotherPort(self) -> None:
        """Without an argument, the alternate path begins at another port; a second one is refused."""
        client, server = self.connected()
        path = self.result(client.transport.loadAlternatePath())
        ends = [self.addresses[0][1], self.addresses[1][0]]
        self.assertEqual([path.localGID.ip, path.remoteGID.ip], ends)
        self.pause(0.1)
        self.cut(0)
        server.transport.sendMessage(b"by the other port")
        self.wait(lambda: client.messages and client.paths and server.paths)
        self.assertEqual((client.lost, server.lost), ([], []))

    def test_formerPath(self) -> None:
        """After a migration, the path without an argument is the former one, to the peer's former address."""
        client, server = self.connected()
        self.result(client.transport.loadAlternatePath(self.path(1)))
        self.pause(0.1)
        for number in (0, 1, 0):
            self.cut(number)
            self.served[-1].paths.clear()
            client.paths.clear()
            server.transport.sendMessage(b"by the other path")
            self.wait(lambda: client.messages and client.paths and server.paths)
            client.messages.clear()
            self.mend(number)
            path = self.result(client.transport.loadAlternatePath())
            expected = [each[number] for each in self.addresses]
            self.assertEqual([path.localGID.ip, path.remoteGID.ip], expected)
            self.pause(0.1)
        self.assertEqual((client.lost, server.lost), ([], []))

    def test_endAfterCut(self) -> None:
        """If the path of an idle connection is cut, the DREQ and its answer take the alternate path."""
        for closing in range(2):
            ends = self.connected()
            self.result(ends[0].transport.loadAlternatePath(self.path(1)))
            self.pause(0.1)
            self.cut(0)
            counters = ends[closing].transport.adapter.localManager.counters
            answered = counters["received DREP"]
            ends[closing].transport.loseConnection()
            for end in ends:
                self.wait(lambda lost=end.lost: lost)  # type: ignore[misc]  # mypy cannot infer the lambda
                end.lost[0].trap(ConnectionDone)
            self.assertEqual(counters["received DREP"], answered + 1)
            self.mend(0)
        self.assertNothingLeft()

    def test_pathIsUsableAsSoonAsLoaded(self) -> None:
        client, server = self.connected()
        assert isinstance(server, Hashing)
        loading = client.transport.loadAlternatePath(self.path(1))
        loading.addCallback(lambda _: self.cut(0))
        self.result(loading)
        client.transport.sendMessage(b"at once")
        self.wait(lambda: server.length and client.paths)
        self.assertEqual(client.lost, [])

    def test_loadedPathIsArmedWhenAnEntryIsFree(self) -> None:
        """Without a free entry for the write that arms the path, loading the path does not complete."""
        client, _server = self.connected(TERMS, TERMS)
        self.patch(sendqueue, "OVERHEAD", 0)
        loading = client.transport.loadAlternatePath(self.path(1))
        self.wait(lambda: client.transport.alternate is not None)
        self.pause(1.0)
        self.assertNoResult(loading)
        self.patch(sendqueue, "OVERHEAD", 4)
        client.transport.sendMessage(b"x")
        self.assertEqual(self.result(loading), pathFor(self.path(1)))

    def migratedBeforeArmed(self) -> tuple[MessageRecorder, Deferred[Any]]:
        """Return a client that has migrated, and its load, for which no write could be posted yet."""
        client, server = self.connected(TERMS, TERMS)
        self.patch(sendqueue, "OVERHEAD", 0)
        first = client.transport.loadAlternatePath(self.path(1))
        self.wait(lambda: client.transport.alternate is not None)
        for end in (client, server):
            end.transport.sendMessage(b"in both directions")
        self.pause(0.1)
        self.cut(0)
        client.transport.sendMessage(b"by the other path")
        self.wait(lambda: client.paths and server.paths)
        self.assertNoResult(first)
        self.mend(0)
        return client, first

    def test_refusedBeforeArmed(self) -> None:
        """A load completes although the device refuses a further one before the first one is armed."""
        client, first = self.migratedBeforeArmed()
        refuseMigration(self, client)
        self.failure(client.transport.loadAlternatePath(self.path(0)), InvalidRequest)
        self.assertNoResult(first)
        self.patch(sendqueue, "OVERHEAD", 4)
        client.transport.sendMessage(b"x")
        self.assertEqual(self.result(first), pathFor(self.path(1)))

    def test_loadedAgainBeforeArmed(self) -> None:
        """Both loads complete if the first one is armed only after the migration to its path."""
        client, first = self.migratedBeforeArmed()
        self.patch(sendqueue, "OVERHEAD", 4)
        self.assertEqual(self.result(client.transport.loadAlternatePath(self.path(0))), pathFor(self.path(0)))
        self.assertEqual(self.successResultOf(first), pathFor(self.path(1)))

    def test_connectionEndFailsArming(self) -> None:
        client, _server = self.connected()
        loading = client.transport.loadAlternatePath(self.path(1))
        self.wait(lambda: client.transport.alternate is not None)
        self.assertFalse(loading.called)
        client.transport.abortConnection()
        self.failureResultOf(loading, DeviceUnavailable)

    def test_exceptionFailsLoading(self) -> None:
        """A load fails if an exception in the manager ends the connection before the answer."""
        client, server = self.connected()
        self.addCleanup(client.transport.adapter.hold())  # as another connection does
        loading = client.transport.loadAlternatePath(self.path(1))
        self.patch(Alternate, "_isOfOurLAP", Mock(side_effect=ZeroDivisionError("a test's")))
        self.failure(loading, DeviceUnavailable)
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)
        self.assertEqual(len(client.lost), 1)
        server.transport.abortConnection()

    def test_LAPBeforeDeviceEvent(self) -> None:
        client, server = self.connected()
        assert isinstance(server, Hashing)
        self.result(client.transport.loadAlternatePath(self.path(1)))
        self.pause(0.1)
        self.devices[1]._listeners.clear()  # no event is reported
        self.cut(0)
        client.transport.sendMessage(b"on")
        self.wait(lambda: client.paths and server.length)
        self.assertEqual(server.paths, [])
        self.mend(0)
        self.result(client.transport.loadAlternatePath(self.path(0)))
        self.assertEqual(len(server.paths), 1)

    def test_unavailablePathsAreRefused(self) -> None:
        client, _server = self.connected()
        ends = [GID.fromIP(each) for each in ("10.0.9.1", "10.0.9.2")]
        path = IBPath(sgid=ends[0], dgid=ends[1], hopLimit=64)
        self.assertRaises(InvalidRequest, client.transport.loadAlternatePath, path)
        half = IBPath(sgid=self.path(1).sgid, dgid=ends[1], hopLimit=64)
        self.assertRefused(APStatus.GID_REJECTED, client, half)
        self.result(client.transport.loadAlternatePath(self.path(1)))

    def test_pathOfOtherPartitionIsRefused(self) -> None:
        client, _server = self.connected()
        tables = {1: [0xFFFF], 2: [0x8005]}
        self.patch(self.devices[1], "pkeys", tables.__getitem__)
        self.assertRefused(APStatus.REJECTED, client, self.path(1))
        self.patch(self.devices[0], "pkeys", tables.__getitem__)
        self.assertRaises(InvalidRequest, client.transport.loadAlternatePath, self.path(1))

    def test_applicationRefuses(self) -> None:
        """The protocol of the passive end may refuse a path; the next one can be loaded."""
        client, server = self.connected()
        assert isinstance(server, Hashing)
        server.answersToPaths.append(False)
        self.assertRefused(APStatus.REJECTED, client, self.path(1))
        self.assertIsNone(server.transport.alternate)
        self.result(client.transport.loadAlternatePath(self.path(1)))

    def test_deviceOfPeerRefuses(self) -> None:
        """A device that cannot migrate refuses paths, which is logged once, and the connection continues."""
        self.patch(migration._rateLimited, "_entries", {})
        client, server = self.connected()
        refuseMigration(self, server)
        with capturedLogs() as logs:
            for _ in range(3):
                self.assertRefused(APStatus.NOT_SUPPORTED, client, self.path(1))
        texts = [text for text in map(formatEvent, logs) if "cannot migrate to" in text]
        self.assertEqual(len(texts), 1)
        self.assertIsNone(server.transport.alternate)
        client.transport.sendMessage(b"on")
        assert isinstance(server, Hashing)
        self.wait(lambda: server.length)

    def test_refusalsOfPeers(self) -> None:
        """Refused paths of one peer do not keep those of others out of the log."""
        self.patch(migration._rateLimited, "_entries", {})
        self.serve(terms=TERMS)
        with capturedLogs() as logs:
            for number in (0, 1):
                client = self.result(self.connectBy(self.path(number), terms=TERMS))
                self.wait(lambda: self.served[-1].isMade)
                refuseMigration(self, self.served[-1])
                for _ in range(3):
                    self.assertRefused(APStatus.NOT_SUPPORTED, client, self.path(1 - number))
        texts = [text for text in map(formatEvent, logs) if "cannot migrate to" in text]
        self.assertEqual(len(texts), 2)

    def test_deviceRefuses(self) -> None:
        """If the device of the requesting end cannot migrate, loading fails, and the connection continues."""
        client, server = self.connected()
        refuseMigration(self, client)
        self.failure(client.transport.loadAlternatePath(self.path(1)), InvalidRequest)
        client.transport.sendMessage(b"on")
        assert isinstance(server, Hashing)
        self.wait(lambda: server.length)
        self.assertEqual((client.lost, server.lost), ([], []))

    def test_deviceWithoutMigration(self) -> None:
        """A device that reports no path migration has no alternate paths, whichever end it is."""
        client, server = self.connected()
        device = self.devices[1]
        device.attributes = replace(device.attributes, canMigrate=False)
        self.assertRefused(APStatus.NOT_SUPPORTED, client)
        device = self.devices[0]
        device.attributes = replace(device.attributes, canMigrate=False)
        self.assertRaises(InvalidRequest, client.transport.loadAlternatePath)

    def test_passiveEndCannotLoadPaths(self) -> None:
        _client, server = self.connected()
        self.assertRaises(InvalidRequest, server.transport.loadAlternatePath, self.path(1))


class ReloadTests(TwoPortCase):
    """Alternate paths that replace others before a migration (C{mayReload})."""

    reloading = replace(TERMS, mayReload=True)

    @property
    def crossed(self) -> IBPath:
        """The path from the second port of the client to the first one of the server."""
        return replace(self.path(1), dgid=self.path(0).dgid)

    def loaded(self, serverTerms: Terms) -> tuple[MessageRecorder, Hashing]:
        """Return two connected protocols with an alternate path; the client may replace it."""
        client, server = self.connected(self.reloading, serverTerms)
        assert isinstance(server, Hashing)
        self.result(client.transport.loadAlternatePath(self.path(1)))
        self.pause(0.1)
        return client, server

    def test_replaced(self) -> None:
        """The connection migrates to the path that was loaded last, whichever end notices the cut."""
        for sender in range(2):
            ends = client, server = self.loaded(self.reloading)
            for path in (self.crossed, self.path(1), self.crossed):
                loaded = self.result(client.transport.loadAlternatePath(path))
            self.assertEqual(client.transport.alternate, loaded)
            self.assertEqual(server.transport.alternate, reversedPath(loaded))
            self.pause(0.1)
            self.cut(0)
            ends[sender].transport.sendMessage(b"by the path that was loaded last")
            self.wait(lambda: (server.length or client.messages) and client.paths and server.paths)  # noqa: B023
            self.assertEqual((client.paths, server.paths), ([loaded], [reversedPath(loaded)]))
            self.assertEqual((client.transport.path, client.transport.alternate), (loaded, None))
            self.mend(0)
            self.closed(client, server)
        self.assertNothingLeft()

    def test_replacedUnderLoad(self) -> None:
        """All messages arrive, once and in order, while paths are replaced and the one in use is cut."""
        self.network.faults = Faults(loss=0.001, duplication=0.001, jitterSeconds=30e-6)
        client, server = self.loaded(self.reloading)
        random, expected, count = Random(7), sha256(), 300
        for _ in range(count):
            block = random.randbytes(BLOCK)
            expected.update(block)
            client.transport.sendMessage(block)
        for path in (self.crossed, self.path(1), self.crossed):
            self.result(client.transport.loadAlternatePath(path))
        self.assertLess(server.length, count * BLOCK)
        self.cut(0)
        self.wait(lambda: server.length == count * BLOCK, 600.0)
        self.assertEqual(server.hash.digest(), expected.digest())
        self.assertEqual([len(each.paths) for each in (client, server)], [1, 1])

    def test_refusedByPeer(self) -> None:
        """Without C{mayReload} the peer refuses another path. The one that it has can be loaded again."""
        client, server = self.loaded(TERMS)
        loading = client.transport.loadAlternatePath(self.crossed)
        self.assertEqual(self.failure(loading, Refused).status, APStatus.REJECTED)
        self.assertIsNone(client.transport.alternate)
        loaded = self.result(client.transport.loadAlternatePath(self.path(1)))
        self.assertEqual(server.transport.alternate, reversedPath(loaded))
        self.pause(0.1)
        self.cut(0)
        client.transport.sendMessage(b"on")
        self.wait(lambda: server.length and client.paths and server.paths)

    def test_refusedByApplication(self) -> None:
        """If the application refuses the new path, no end has an alternate path, until one is loaded."""
        client, server = self.loaded(self.reloading)
        server.answersToPaths.append(False)
        loading = client.transport.loadAlternatePath(self.crossed)
        self.assertEqual(self.failure(loading, Refused).status, APStatus.REJECTED)
        self.assertEqual((client.transport.alternate, server.transport.alternate), (None, None))
        self.result(client.transport.loadAlternatePath(self.path(1)))

    def test_notAllowed(self) -> None:
        """Without C{mayReload} the client does not replace a path, which remains loaded."""
        client, _server = self.connected(TERMS, self.reloading)
        loaded = self.result(client.transport.loadAlternatePath(self.path(1)))
        error = self.assertRaises(InvalidRequest, client.transport.loadAlternatePath, self.crossed)
        self.assertIn("mayReload", str(error))
        self.assertEqual(client.transport.alternate, loaded)

    def test_replacedBeforeArmed(self) -> None:
        """A load that has not armed the queue pair fails if its path is replaced; the second one succeeds."""
        client, _server = self.connected(self.reloading, self.reloading)
        self.patch(sendqueue, "OVERHEAD", 0)
        first = client.transport.loadAlternatePath(self.path(1))
        self.wait(lambda: client.transport.alternate is not None)
        second = client.transport.loadAlternatePath(self.crossed)
        self.failureResultOf(first, InvalidRequest)
        self.patch(sendqueue, "OVERHEAD", 4)
        self.assertEqual(self.result(second), pathFor(self.crossed))

    def test_deviceCannotDisarm(self) -> None:
        """A device that cannot give up a loaded path has no such connections and listeners."""
        for number, device in enumerate(self.devices):
            real = device.attributes
            device.attributes = replace(real, canDisarm=False)
            if number:
                listening = self.ends(terms=self.reloading).listen(MessageFactory(MessageRecorder))
                failure = self.failureResultOf(listening, CannotListenError)
            else:
                failure = self.failureResultOf(self.ask(self.reloading), InvalidRequest)
            self.assertIn("mayReload", str(failure.value))
            device.attributes = real
        self.assertNothingLeft()


class RequestedTests(MessagingCase):
    """Alternate paths requested by a REQ."""

    addresses = TwoPortCase.addresses

    def connect(self, alternate: IBPath | Automatic) -> tuple[MessageRecorder, MessageRecorder]:
        """Return two connected protocols, whose client has requested an alternate path."""
        port = self.serve()
        client = self.result(self.connectBy(self.path(0), alternate=alternate))
        self.wait(lambda: self.served[-1].isMade)
        port.stopListening()
        return client, self.served[-1]

    def assertNotAccepted(self, alternate: IBPath) -> None:
        """Connect with an alternate path, which the server does not accept; only the first path is used."""
        client, server = self.connect(alternate)
        self.assertEqual((client.transport.alternate, server.transport.alternate), (None, None))
        client.transport.sendMessage(b"by the first")
        self.wait(lambda: server.messages)

    def test_pathOfREQThenLoadedPath(self) -> None:
        client, server = self.connect(self.path(1))
        self.assertEqual(client.transport.alternate, pathFor(self.path(1)))
        self.assertEqual(server.transport.alternate, reversedPath(pathFor(self.path(1))))
        self.pause(0.1)
        self.network.partition(*(each[0] for each in self.addresses))
        client.transport.sendMessage(b"on")
        self.wait(lambda: server.messages and client.paths and server.paths)
        self.assertEqual(server.messages, [(b"on", None)])
        self.assertEqual((client.transport.path, client.transport.alternate), (pathFor(self.path(1)), None))
        self.assertEqual(client.transport.adapter.manager.counters["sent LAP"], 0)
        self.network.join(*(each[0] for each in self.addresses))
        loaded = self.result(client.transport.loadAlternatePath(self.path(0)))
        self.network.partition(*(each[1] for each in self.addresses))
        server.transport.sendMessage(b"back")
        self.wait(lambda: client.messages and len(client.paths) == len(server.paths) == 2)
        self.assertEqual(client.transport.path, loaded)
        self.closed(client, server)
        server.lost[0].trap(ConnectionDone)
        self.assertNothingLeft()

    def test_automaticPath(self) -> None:
        """An automatic alternate path begins at another port, for both kinds of endpoints."""
        client, server = self.connect(AUTOMATIC)
        self.assertEqual(client.transport.alternate.localGID, self.path(1).sgid)
        self.assertEqual(server.transport.alternate.remoteGID, self.path(1).sgid)
        self.listenAt()
        client = self.result(self.connectTo(host=self.addresses[1][1], alternate=AUTOMATIC))
        self.assertEqual(client.transport.path.localGID, self.path(1).sgid)
        self.assertEqual(client.transport.alternate.localGID, self.path(0).sgid)

    def test_pathsOfSubnetAdministration(self) -> None:
        """On InfiniBand the subnet administration is queried for paths from other ports, then the same."""
        asked: list[tuple[GID | None, ...]] = []
        answers: list[IBPath | None] = [self.path(1), None, self.path(1)]

        async def findOther(path: IBPath, destination: GID, sources: Sequence[GID]) -> IBPath | None:
            asked.append((path.sgid, destination, *sources))
            return answers.pop(0)

        resolver = SimpleNamespace(findOther=findOther)
        self.patch(ConnectionManager, "resolverFor", lambda manager, path=None: resolver)
        client, _server = self.connect(AUTOMATIC)
        self.assertEqual(client.transport.alternate.localGID, self.path(1).sgid)
        client, _server = self.connect(AUTOMATIC)
        self.assertIsNone(client.transport.alternate)
        path = self.path(0)
        self.assertEqual(asked, 2 * [(path.sgid, path.dgid, self.path(1).sgid, path.sgid)])

    def test_noOtherAddress(self) -> None:
        """A device with one address requests no alternate path, and the connection is established."""
        self.devices[0] = self.network.device("10.0.1.9")
        self.addCleanup(self.devices[0].close)
        self.addresses = (("10.0.1.9", "10.0.1.9"), self.addresses[1])
        client, _server = self.connect(AUTOMATIC)
        self.assertIsNone(client.transport.alternate)
        self.failureResultOf(client.transport.loadAlternatePath(), InvalidRequest)

    def test_deviceWithoutMigration(self) -> None:
        """A client on a device without path migration requests no alternate path."""
        device = self.devices[0]
        device.attributes = replace(device.attributes, canMigrate=False)
        client, server = self.connect(AUTOMATIC)
        self.assertFalse(isPath(server.transport.connection.request.alternate))
        self.failureResultOf(self.connectBy(self.path(0), alternate=self.path(1)), InvalidRequest)

    def test_deviceCannotMigrate(self) -> None:
        """A REP does not accept the path of the REQ if the device refuses it."""
        real = SoftQueuePair.modify
        self.patch(SoftQueuePair, "modify", lambda pair, attributes: refusing(real, pair, attributes))
        self.assertNotAccepted(self.path(1))

    def test_applicationRefusesPathOfREQ(self) -> None:
        """The protocol of the passive end may refuse the path of a REQ, and accept the connection."""
        self.patch(MessageRecorder, "alternatePathRequested", lambda recorder, path: False)
        self.assertNotAccepted(self.path(1))

    def test_unavailablePathIsNotAccepted(self) -> None:
        path = self.path(1)
        half = IBPath(sgid=path.sgid, dgid=GID.fromIP("10.0.9.2"), hopLimit=64)
        for each in (half, self.path(0)):  # the latter is the primary path
            self.assertNotAccepted(each)

    def test_foreignPathIsRefusedAtOnce(self) -> None:
        path = IBPath(sgid=GID.fromIP("10.0.9.1"), dgid=self.path(1).dgid, hopLimit=64)
        self.failureResultOf(self.connectBy(self.path(0), alternate=path), InvalidRequest)
        self.assertNothingLeft()
