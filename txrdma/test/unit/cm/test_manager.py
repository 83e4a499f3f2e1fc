"""Connections between hosts whose messages are lost, duplicated, delayed, or cross each other."""

from __future__ import annotations

from txrdma.cm.core.connection import ConnectionCore
from txrdma.cm.core.events import (
    ConnectionAbandoned,
    ConnectionRejected,
    ConnectionTimedOut,
    Disconnected,
    ServiceResolved,
    ServiceTimedOut,
)
from txrdma.cm.core.exchange import RetryPolicy
from txrdma.cm.layouts.messages import (
    DREP,
    DREQ,
    LAP,
    MessageKind,
    REJ,
    RejectReason,
    REP,
    REQ,
    RTU,
    SIDRREP,
    SIDRREQ,
    SIDRStatus,
)
from txrdma.cm.layouts.paths import pathFor, pathOf
from txrdma.error import InvalidRequest
from txrdma.iba.path import IBPath, lifetimeSeconds
from txrdma.iba.types import GID, QPN
from txrdma.kit.shares import CLIENT_SHARE
from txrdma.test.support.cm.ends import End, SERVICE, World
from txrdma.test.support.cm.managercase import ACCEPTED, ManagerCase, OPENED


class OpeningTests(ManagerCase):
    """Connections are opened from REQ to RTU."""

    def test_threeMessagesConnect(self) -> None:
        listener = self.server.listen()
        mine = self.client.connect(self.server).connection
        self.world.run(until=1.0)
        self.assertEqual(self.world.log, ["REQ", "REP", "RTU"])
        self.assertEqual(self.eventNames(self.client), OPENED)
        self.assertEqual(self.eventNames(self.server), ACCEPTED)
        remote = self.server.happened[0][0].connection
        self.assertEqual((mine.state, remote.state), ("ESTABLISHED", "ESTABLISHED"))
        self.assertEqual((mine.localCommID, mine.localQPN), (remote.remoteCommID, remote.remoteQPN))
        self.assertEqual((mine.remoteCommID, mine.remoteQPN), (remote.localCommID, remote.localQPN))
        self.assertEqual(len(listener.waiting), 0)
        self.assertEqual(pathOf(remote.primary), pathOf(mine.primary).reverse())

    def test_anyLostMessageIsResent(self) -> None:
        for kinds in ((REQ,), (REP,), (RTU,), (REQ, REP, RTU)):
            self.begin(World())
            self.server.listen()
            self.lose(*kinds)
            self.client.connect(self.server)
            self.world.run(until=20.0)
            self.assertEqual(
                (self.eventNames(self.client), self.eventNames(self.server)), (OPENED, ACCEPTED), kinds
            )
        counters = self.server.manager.counters
        self.assertGreaterEqual(counters["retried REP"], 1)
        self.assertEqual(counters["sent REP"], counters["retried REP"] + 1)

    def test_REQWithoutListenerIsRejected(self) -> None:
        self.client.connect(self.server)
        self.world.run(until=0.1)
        (event,) = [event for _, event in self.client.happened]
        assert isinstance(event, ConnectionRejected)
        self.assertEqual(event.rejection.reason, RejectReason.INVALID_SERVICE_ID)
        self.assertEmpty()

    def test_timewaitIsNotInBacklog(self) -> None:
        """A connection that failed, and whose IDs are in time-wait, does not count for the backlog."""
        listener = self.server.listen(backlog=1)
        path = pathFor(self.client.pathTo(self.server)).replace(localACKTimeout=20)
        self.world.drops = lambda message: not isinstance(message, REQ)
        self.client.connect(self.server, primary=path, maxCMRetries=0)
        self.world.run(until=6.0)
        self.assertEqual(self.eventNames(self.server), ["ConnectionRequested", "ConnectionTimedOut"])
        self.assertEqual(self.server.manager.states, {"TIMEWAIT": 1})
        self.assertEqual(len(listener.waiting), 0)
        self.world.drops = lambda message: False
        again = self.client.connect(self.server)
        self.world.run(until=10.0)
        self.assertEqual(again.connection.state, "ESTABLISHED")
        self.client.disconnect(again)
        self.assertEmpty()

    def test_silentHostTimesOut(self) -> None:
        self.world.drops = lambda message: isinstance(message, REQ)
        self.server.listen()
        self.client.connect(self.server)
        self.world.run()
        self.assertEqual([event for _, event in self.client.happened], [ConnectionTimedOut(MessageKind.REQ)])
        self.assertEqual(self.world.log, ["REQ"] * 8 + ["REJ"])
        self.assertEmpty()

    def test_unansweredREPTimesOut(self) -> None:
        self.server.listen()
        self.world.drops = lambda message: isinstance(message, (REP, RTU, REJ))
        self.client.connect(self.server)
        self.world.run()
        self.assertEqual(self.eventNames(self.server), ["ConnectionRequested", "ConnectionTimedOut"])
        self.assertEmpty()

    def test_rejectionCarriesReasonAndData(self) -> None:
        self.server.listen()
        self.server.answers = False
        self.client.connect(self.server)
        self.world.run(until=0.05)
        ((managed, _),) = self.server.happened
        opening = managed.connection.opening
        self.server.do(
            managed,
            lambda: opening.reject(RejectReason.CONSUMER_REJECT, self.world.now, privateData=b"not today"),
        )
        self.world.run(until=1.0)
        ((_, event),) = self.client.happened
        assert isinstance(event, ConnectionRejected)
        self.assertEqual(event.rejection.reason, RejectReason.CONSUMER_REJECT)
        self.assertEqual(event.rejection.privateData[:9], b"not today")
        self.assertFalse(opening.accept(REP(), self.world.now))
        self.assertEmpty()

    def test_repeatedREQIsAnsweredByMRA(self) -> None:
        self.server.listen()
        self.server.answers = False
        mine = self.client.connect(self.server)
        self.world.run(until=30.0)
        self.assertEqual(self.world.log, ["REQ", "REQ", "MRA"])
        self.assertEqual(mine.connection.state, "MRA_REQ_RCVD")
        ((managed, _),) = self.server.happened
        reply = REP(localQPN=QPN(9), localCAGUID=self.server.manager.guid)
        self.server.do(managed, lambda: managed.connection.opening.accept(reply, self.world.now))
        self.world.run(until=31.0)
        self.assertEqual(mine.connection.state, "ESTABLISHED")

    def test_repeatedREPIsAnsweredByMRA(self) -> None:
        self.server.listen()
        self.client.answers = False
        mine = self.client.connect(self.server)
        self.world.run(until=30.0)
        self.assertEqual(self.world.log, ["REQ", "REP", "REP", "MRA"])
        self.client.do(mine, lambda: mine.connection.opening.ready(b"", self.world.now))
        self.world.run(until=31.0)
        self.assertEqual(self.eventNames(self.server), ACCEPTED)

    def test_cancelledREQIsFoundByGUIDAndCommID(self) -> None:
        self.server.listen()
        self.server.answers = False
        mine = self.client.connect(self.server)
        self.world.run(until=0.05)
        self.client.disconnect(mine)
        self.world.run(until=1.0)
        self.assertEqual(self.eventNames(self.server), ["ConnectionRequested", "ConnectionRejected"])
        self.assertEmpty()

    def test_dataReplacesRTU(self) -> None:
        self.server.listen()
        self.lose(RTU)
        self.client.connect(self.server)
        self.world.run(until=0.05)
        (managed, _) = self.server.happened[0]
        self.assertEqual(managed.connection.state, "REP_SENT")
        self.server.do(managed, lambda: managed.connection.communicating(self.world.now))
        self.assertEqual((self.eventNames(self.server), managed.connection.state), (ACCEPTED, "ESTABLISHED"))

    def test_REQsBeyondBacklogAreDropped(self) -> None:
        self.server.listen(backlog=int(2 / CLIENT_SHARE))
        self.server.answers = False
        for _ in range(4):
            self.client.connect(self.server)
        self.world.run(until=0.05)
        self.assertEqual(self.eventNames(self.server), ["ConnectionRequested"] * 2)
        self.assertEqual(self.server.manager.counters["dropped REQ"], 2)
        self.server.answers = True
        for managed, event in list(self.server.happened):
            self.server._answer(managed, event)
            self.server.manager.collect(managed, self.world.now)
        self.server.turn()
        self.world.run(until=20.0)
        self.assertEqual(self.eventNames(self.client).count("ConnectionEstablished"), 4)

    def test_listenersShareServiceByPattern(self) -> None:
        anything = self.server.listen()
        other = self.server.listen(offset=2, pattern=b"blue")
        self.assertRaises(InvalidRequest, self.server.listen)
        for private in (b"a blue one", b"--blue", b"a red one", b"blue"):
            self.client.connect(self.server, privateData=private.ljust(92, b"\0"))
        self.world.run(until=1.0)
        came = {managed: managed.listener for managed, _ in self.server.happened}
        self.assertEqual(list(came.values()), [other, other, anything, anything])
        self.server.manager.unlisten(anything)
        self.server.manager.unlisten(anything)
        self.client.connect(self.server)
        self.world.run(until=2.0)
        self.assertEqual(self.eventNames(self.client)[-1], "ConnectionRejected")


class PeerToPeerTests(ManagerCase):
    """Both ends send a REQ."""

    def connectBoth(self) -> None:
        self.client.connect(self.server, isPeerToPeer=True)
        self.server.connect(self.client, isPeerToPeer=True)
        self.world.run(until=self.world.now + 5.0)

    def test_higherGUIDWinsCrossedREQs(self) -> None:
        for isLate in (False, True):
            for lost in ((), (REQ,), (REQ, REQ), (REP,), (RTU,)):
                self.begin(World())
                self.lose(*lost)
                first, second = (self.server, self.client) if isLate else (self.client, self.server)
                first.connect(second, isPeerToPeer=True)
                self.world.run(until=0.5 if isLate else 0.005)
                second.connect(first, isPeerToPeer=True)
                self.world.run(until=20.0)
                # The server's CA GUID is higher.
                self.assertEqual(self.eventNames(self.server), OPENED, (isLate, lost))
                self.assertEqual(self.eventNames(self.client), ACCEPTED, (isLate, lost))
                mine, remote = (end.happened[0][0].connection for end in (self.client, self.server))
                self.assertEqual(mine.remoteCommID, remote.localCommID)
                self.assertEqual(remote.remoteCommID, mine.localCommID)

    def test_secondConnection(self) -> None:
        """An established connection ignores REQs: a second connection of the same pair is established."""
        self.connectBoth()
        for _ in range(5):
            for end in (self.client, self.server):
                end.happened.clear()
            self.connectBoth()
            self.assertEqual((self.eventNames(self.server), self.eventNames(self.client)), (OPENED, ACCEPTED))

    def test_listenerOfTheSameService(self) -> None:
        """An established connection ignores the peer's REQs to a listener of the same service."""
        self.connectBoth()
        for end in (self.client, self.server):
            end.happened.clear()
        self.server.listen()
        self.client.connect(self.server)
        self.world.run(until=10.0)
        self.assertEqual((self.eventNames(self.server), self.eventNames(self.client)), (ACCEPTED, OPENED))

    def test_oneManager(self) -> None:
        """Two ends of one manager connect to each other, whichever has the higher queue pair number."""
        for numbers in ((1, 2), (2, 1)):
            self.begin(World())
            for number in numbers:
                self.client.connect(self.client, isPeerToPeer=True, localQPN=QPN(number))
            self.world.run(until=5.0)
            connections = list(dict.fromkeys(managed.connection for managed, _ in self.client.happened))
            states = [
                (each.opening.isActive, each.state, each.opening.request.localQPN) for each in connections
            ]
            self.assertEqual(sorted(states), [(False, "ESTABLISHED", 2), (True, "ESTABLISHED", 2)])
            self.assertEqual(connections[0].remoteCommID, connections[1].localCommID)

    def test_oneAddress(self) -> None:
        """Of two processes at an address one receives REQs, and answers, although its CA GUID is higher."""
        ends = [End(World(), "10.0.0.1", seed) for seed in (1, 2)]
        low, high = (each.connect(each, isPeerToPeer=True) for each in ends)
        request = low.connection.opening.request
        ends[1].manager.received(request, 1, low.path, 0.0)
        self.assertEqual((high.connection.state, high.connection.opening.isActive), ("REQ_RCVD", False))

    def test_unansweredPeerTimesOut(self) -> None:
        self.client.connect(self.server, isPeerToPeer=True)
        self.world.run()
        self.assertEqual(self.eventNames(self.client), ["ConnectionTimedOut"])
        self.assertEmpty()


class ClosingTests(ManagerCase):
    """Closing, by either end."""

    def setUp(self) -> None:
        super().setUp()
        self.open()

    def open(self) -> None:
        self.server.listen()
        self.mine = self.client.connect(self.server)
        self.world.run(until=self.world.now + 10.0)
        self.remote = self.server.happened[0][0]
        self.assertEqual(self.remote.connection.state, "ESTABLISHED")
        for end in (self.client, self.server):
            end.happened.clear()
        self.world.log.clear()

    def test_endIsReportedOnceAtBothEnds(self) -> None:
        for isServer in (False, True):
            self.begin(World())
            self.open()
            one, managed = (self.server, self.remote) if isServer else (self.client, self.mine)
            one.disconnect(managed)
            self.world.run()
            self.assertEqual(self.world.log, ["DREQ", "DREP"])
            for end in (self.client, self.server):
                names = [type(event).__name__ for _, event in end.happened]
                self.assertEqual(names, ["Disconnected", "TimewaitOver"])
            self.assertEmpty()

    def test_lostDREQOrDREPIsResent(self) -> None:
        for kind in (DREQ, DREP):
            self.begin(World())
            self.open()
            self.lose(kind)
            self.client.disconnect(self.mine)
            self.world.run()
            self.assertEqual(self.eventNames(self.client), ["Disconnected"])
            self.assertEqual(self.eventNames(self.server), ["Disconnected"])
            self.assertEmpty()

    def test_silentPeerDoesNotPreventEnd(self) -> None:
        self.world.drops = lambda message: True
        self.client.disconnect(self.mine)
        self.world.run()
        self.assertEqual(self.world.log, ["DREQ"] * 8)
        self.assertEqual([event for _, event in self.client.happened][:1], [Disconnected(None)])
        self.world.drops = lambda message: False
        self.server.disconnect(self.remote)
        self.assertEmpty()
        self.assertEqual(self.client.manager.counters["stray DREQ"], 1)  # was answered

    def test_DREQBeforeRTU(self) -> None:
        self.begin(World())
        self.server.listen()
        self.lose(RTU)
        mine = self.client.connect(self.server)
        self.world.run(until=0.05)
        self.client.disconnect(mine)
        self.world.run()
        self.assertEqual(self.eventNames(self.server), [*ACCEPTED, "Disconnected"])
        self.assertEmpty()

    def test_lateMessagesInTimewait(self) -> None:
        connection = self.mine.connection
        request = connection.opening.request
        self.client.disconnect(self.mine)
        self.world.run(until=self.world.now + 0.03)
        self.assertEqual(self.remote.connection.state, "TIMEWAIT")
        self.world.log.clear()
        manager, path = self.server.manager, self.client.pathTo(self.server)
        manager.received(request, 1, path, self.world.now)
        release = DREQ(localCommID=connection.localCommID, remoteCommID=connection.remoteCommID,
                       remoteQPN=connection.remoteQPN)  # fmt: skip
        manager.received(release, 99, path, self.world.now)
        rejection, answer = manager.outgoing()
        assert isinstance(rejection.message, REJ)
        self.assertEqual(rejection.message.reason, RejectReason.STALE_CONNECTION)
        self.assertEqual((type(answer.message), answer.transactionID), (DREP, 99))
        self.assertEmpty()

    def test_lateLAPAfterDREQ(self) -> None:
        """After the end of the connection was reported, no LAP is reported."""
        connection, peer = self.mine.connection, self.remote.connection
        peer.received(DREQ(remoteQPN=peer.localQPN), 98, self.world.now)
        self.assertEqual(connection.state, "ESTABLISHED")
        self.assertEqual(peer.state, "DREQ_RCVD")
        peer.events()
        peer.received(LAP(remoteQPN=peer.localQPN), 97, self.world.now)
        self.assertEqual(peer.events(), [])

    def test_interruptedStale(self) -> None:
        """A connection that cannot be ended as stale is abandoned."""

        def fail(*_arguments: object) -> None:
            raise ZeroDivisionError("a test's")

        self.patch(ConnectionCore, "fail", fail)
        request = self.mine.connection.opening.request
        manager, path = self.server.manager, self.client.pathTo(self.server)
        again = request.replace(localCommID=request.localCommID + 1)
        self.assertRaises(ZeroDivisionError, manager.received, again, 1, path, self.world.now)
        self.assertEqual([(self.remote, ConnectionAbandoned())], manager.events())
        self.assertEqual(len(manager), 0)

    def test_REQFromKnownQueuePairIsStale(self) -> None:
        qpn = self.mine.connection.localQPN
        self.client.manager._forget(self.mine)  # as if the process had restarted
        again = self.client.connect(self.server, localQPN=qpn)
        self.world.run(until=self.world.now + 1.0)
        (event, *_) = [event for who, event in self.client.happened if who is again]
        assert isinstance(event, ConnectionRejected)
        self.assertEqual(event.rejection.reason, RejectReason.STALE_CONNECTION)
        self.assertEqual(self.eventNames(self.server), ["Disconnected"])
        self.assertEqual(self.client.manager.counters["stray DREQ"], 1)
        self.world.run()
        self.client.connect(self.server, localQPN=qpn)
        self.world.run(until=self.world.now + 1.0)
        self.assertEqual(self.eventNames(self.client)[-1], "ConnectionEstablished")


class AlternateTests(ManagerCase):
    """Alternate paths of connections."""

    def open(self, seconds: float = 1.0) -> None:
        """Open a connection in this time."""
        self.server.listen()
        self.mine = self.client.connect(self.server)
        self.world.run(until=seconds)

    def load(self, packetLifeTime: int = 14) -> IBPath:
        """Load another path."""
        ends = [GID.fromIP(each) for each in ("10.1.0.1", "10.1.0.2")]
        path = IBPath(sgid=ends[0], dgid=ends[1], hopLimit=64, packetLifeTime=packetLifeTime)
        mine = self.mine
        self.client.do(mine, lambda: mine.connection.loadAlternatePath(pathFor(path), self.world.now))
        return path

    def test_messagesTakeNewPath(self) -> None:
        self.open()
        (remote, _) = self.server.happened[0]
        path = self.load()
        self.world.run(until=2.0)
        for end, managed in ((self.client, self.mine), (self.server, remote)):
            managed.connection.migrated(self.world.now)
            self.assertEqual(end.manager.outgoing(), [])
            end.manager.collect(managed, self.world.now)
        self.assertEqual((self.mine.path.dgid, self.mine.path.dqpn), (path.dgid, 1))
        self.assertEqual((remote.path.dgid, remote.path.sgid), (path.sgid, path.dgid))

    def test_timersOfNewPath(self) -> None:
        """After a migration, repeated DREQs and timewait use the times of the new path."""
        self.open()
        self.load(packetLifeTime=21)
        self.world.run(until=2.0)
        connection = self.mine.connection
        self.client.do(self.mine, lambda: connection.migrated(self.world.now))
        self.world.drops = lambda message: True
        self.client.disconnect(self.mine)
        request = connection.opening.request
        policy = RetryPolicy(request.remoteCMResponseTimeout, 21, request.maxCMRetries)
        self.assertEqual(connection.deadline(), self.world.now + policy.seconds)
        self.world.run(until=self.world.now + (policy.retries + 1) * policy.seconds + 0.1)
        self.assertEqual(connection.state, "TIMEWAIT")
        deadline = connection.deadline()
        assert deadline is not None
        self.assertGreater(deadline - self.world.now, lifetimeSeconds(22) - 1)

    def test_LAPReplacesRTU(self) -> None:
        self.lose(RTU)
        self.open(0.05)
        self.load()
        self.world.run(until=0.2)
        self.assertEqual(self.eventNames(self.server), [*ACCEPTED, "AlternatePathRequested", "QPArmed"])

    def test_disconnectReportsPendingLAP(self) -> None:
        self.open()
        self.lose(LAP)
        self.load()
        self.client.disconnect(self.mine)
        self.world.run()
        self.assertEqual(self.eventNames(self.client), [*OPENED, "AlternatePathAbandoned", "Disconnected"])
        self.assertEmpty()


class ServiceTests(ManagerCase):
    """Queries for services (SIDR)."""

    def ask(self) -> None:
        """Query the server for a service."""
        question = SIDRREQ(serviceID=SERVICE)
        path = self.client.pathTo(self.server)
        self.client.manager.resolve(question, path, RetryPolicy(17, 14, 3), self.world.now)
        self.client.turn()
        self.world.run(until=5.0)

    def test_serviceIsResolvedDespiteLoss(self) -> None:
        for kinds in ((), (SIDRREQ,), (SIDRREP,)):
            self.begin(World())
            self.server.listen()
            self.lose(*kinds)
            self.ask()
            ((_, event),) = self.client.happened
            assert isinstance(event, ServiceResolved)
            self.assertEqual((event.response.qpn, event.response.qkey), (77, 0x1234))
            self.assertEqual(self.eventNames(self.server), ["ServiceRequested"])
            self.assertEmpty()

    def test_unknownServiceIsRefused(self) -> None:
        self.ask()
        ((_, event),) = self.client.happened
        assert isinstance(event, ServiceResolved)
        self.assertEqual(event.response.status, SIDRStatus.SERVICE_ID_NOT_SUPPORTED)
        self.assertEmpty()

    def test_silentHostTimesOut(self) -> None:
        self.world.drops = lambda message: True
        self.ask()
        self.assertEqual([event for _, event in self.client.happened], [ServiceTimedOut()])
        self.assertEmpty()


class SeedTests(ManagerCase):
    """
    Many connections over a network that loses, duplicates and delays.

    @cvar connections: number of concurrent ones; L{txrdma.test.soak.cm.test_manager} opens more.
    """

    connections = 500

    def test_bothEndsAgreeForEachSeed(self) -> None:
        for seed in range(60):
            self.play(seed)

    def play(self, seed: int) -> None:
        """Open and close connections on a network whose faults are drawn by a seed."""
        self.begin(World(seed, loss=0.2, doubling=0.3))
        self.server.listen(backlog=3)
        ours = [self.client.connect(self.server) for _ in range(5)]
        self.world.run(until=60.0)
        for number, managed in enumerate(ours):
            self.assertEqual(managed.connection.state, "ESTABLISHED", seed)
            remote = next(
                each for each, _ in self.server.happened
                if each.connection.remoteCommID == managed.connection.localCommID
            )  # fmt: skip
            for turn in (number, number + 1)[: 1 + number // 3]:  # the last two by both ends
                end, one = ((self.client, managed), (self.server, remote))[turn % 2]
                end.disconnect(one)
        self.assertEmpty()
        for end in (self.client, self.server):
            kinds = self.eventNames(end)
            for kind in ("ConnectionEstablished", "Disconnected"):
                self.assertEqual(kinds.count(kind), 5, seed)

    def test_thousandsOfIdleConnectionsHaveNoDeadline(self) -> None:
        self.server.listen(backlog=self.connections)
        for _ in range(self.connections):
            self.client.connect(self.server)
        self.world.run(until=5.0)
        self.assertEqual((len(self.client.manager), len(self.server.manager)), (self.connections,) * 2)
        self.assertEqual(self.eventNames(self.client).count("ConnectionEstablished"), self.connections)
        left = [slot for slot in self.client.manager._wheel._slots.values() if slot]
        self.assertEqual(left, [])

    def test_restingCommIDIsNotReused(self) -> None:
        numbers = iter((5, 1, 5, 0, 6, 1))
        self.client.manager._random = lambda: next(numbers)
        first = self.client.connect(self.server)
        second = self.client.connect(self.server)
        self.assertEqual((first.key, second.key), (5, 6))
