"""Connections through management ports: software devices with queue pairs 1, and Deferreds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import Any, cast
from unittest.mock import Mock

from zope.interface import directlyProvides

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from txrdma.cm.claims import ServiceClaims
from txrdma.cm.connection import CMConnection
from txrdma.cm.core.alternate import acceptAnyPath, PathCheck
from txrdma.cm.core.events import (
    AlternatePathRequested,
    ConnectionEstablished,
    ConnectionRejected,
    ConnectionReplied,
    ConnectionRequested,
    ConnectionTimedOut,
    Disconnected,
    Event,
    TimewaitOver,
)
from txrdma.cm.errors import PeerSilent
from txrdma.cm.layouts.messages import APStatus, REP, REQ, SIDRREP
from txrdma.cm.manager import ConnectionManager
from txrdma.error import DeviceUnavailable, InvalidRequest, Refused, ResourceExhausted
from txrdma.iba.path import IBPath
from txrdma.iba.types import GID, GUID, LID, QPN
from txrdma.interfaces import IServiceClaims
from txrdma.kit.forwardclock import sharedForwardClock
from txrdma.mad.ports.verbsport import IPollingReactor, VerbsPort
from txrdma.mad.server import MADServer
from txrdma.soft.device import SoftDevice
from txrdma.test.unit.mad.test_verbsport import VerbsPortCase

SERVICE = 0x1000000000000042
ALTERNATE = IBPath(sgid=GID.fromIP("10.1.0.1"), dgid=GID.fromIP("10.1.0.2"), hopLimit=64, packetLifeTime=12)


class PortCase(VerbsPortCase):
    """A manager at each end, with applications that accept and record events."""

    def setUp(self) -> None:
        super().setUp()
        servers = (MADServer(self.agent), self.server)
        self.managers = [ConnectionManager(server) for server in servers]
        self.client, self.host = self.managers
        for manager in self.managers:
            self.addCleanup(manager.close)
        self.received: list[list[Event]] = [[], []]
        self.made: list[CMConnection] = []
        self.numbers = count(21)
        source, destination = (GID.fromIP(address) for address in self.addresses)
        self.hostPath = IBPath(sgid=source, dgid=destination, hopLimit=64, packetLifeTime=12)

    def port(self, device: SoftDevice) -> VerbsPort:
        return VerbsPort(cast("IPollingReactor", self.clock), device, isGSI=True)

    def hostEvent(self, connection: CMConnection, event: Event) -> None:
        self.received[1].append(event)
        if isinstance(event, ConnectionRequested):
            self.made.append(connection)
            connection.accept(REP(localQPN=QPN(22)))
        elif isinstance(event, AlternatePathRequested):
            connection.replyAlternatePath(event.transactionID)
        elif isinstance(event, Disconnected):
            connection.disconnect()

    def clientEvent(self, connection: CMConnection, event: Event) -> None:
        self.received[0].append(event)
        if isinstance(event, ConnectionReplied):
            connection.ready()

    def connect(self) -> CMConnection:
        request = REQ(serviceID=SERVICE, localQPN=QPN(next(self.numbers)), remoteCMResponseTimeout=14,
                      localCMResponseTimeout=14, maxCMRetries=3)  # fmt: skip
        return self.client.connect(request, self.hostPath, self.clientEvent)

    def opened(self, checkPath: PathCheck = acceptAnyPath) -> CMConnection:
        """Return an established connection."""
        self.host.listen(SERVICE, self.hostEvent, checkPath=checkPath)
        connection = self.connect()
        self.wait(lambda: self.kinds(1)[-1:] == [ConnectionEstablished])
        return connection

    def kinds(self, which: int) -> list[type]:
        """Return the kinds of events that an application has received."""
        return [type(event) for event in self.received[which]]


class ConnectionTests(PortCase):
    """Connections, from the first to the last message."""

    def test_connectionIsMadeEndedAndForgotten(self) -> None:
        connection = self.opened()
        self.assertEqual((connection.state, connection.isActive), ("ESTABLISHED", True))
        self.assertFalse(self.made[0].isActive)
        connection.disconnect(b"farewell")
        self.wait(lambda: self.kinds(0)[-1] == self.kinds(1)[-1] == TimewaitOver)
        self.assertEqual(
            self.kinds(0), [ConnectionReplied, ConnectionEstablished, Disconnected, TimewaitOver]
        )
        (_, _, event, _) = self.received[1]
        assert isinstance(event, Disconnected) and event.request is not None
        self.assertEqual(event.request.privateData[:8], b"farewell")
        counters = self.client.counters
        self.assertEqual([counters[f"sent {kind}"] for kind in ("REQ", "RTU", "DREQ", "REP")], [1, 1, 1, 0])
        for manager in self.managers:
            self.assertEqual((manager._connections, len(manager._core)), ({}, 0))
        connection.disconnect()
        self.assertEqual(self.client.counters["sent DREQ"], 1)

    def test_endedListenerKeepsConnections(self) -> None:
        end = self.host.listen(SERVICE, self.hostEvent)
        self.connect()
        self.wait(lambda: ConnectionEstablished in self.kinds(1))
        end()
        self.connect()
        self.wait(lambda: ConnectionRejected in self.kinds(0))
        self.assertEqual(self.made[0].state, "ESTABLISHED")

    def test_clockSetBack(self) -> None:
        """A lost REQ, DREQ or SIDR_REQ is sent again soon although the system's clock was set back."""
        self.clock.advance(7200.0)
        self.host.listen(SERVICE, self.hostEvent)
        self.host.serve(SERVICE + 1, lambda _request, _path: SIDRREP())
        asked: list[Deferred[SIDRREP]] = []
        connected: list[CMConnection] = []

        def checkSetBack(isBefore: bool, ask: Callable[[], None], isDone: Callable[[], bool]) -> None:
            self.clock.rightNow -= 0.0 if isBefore else 1800.0
            self.network.partition(*self.addresses)
            ask()
            self.pause(0.01)
            self.network.heal()
            self.clock.rightNow -= 1800.0 if isBefore else 0.0
            sharedForwardClock(self.clock).seconds()  # another user of the process notices it
            self.wait(isDone, 5.0)

        for isBefore in (True, False):
            checkSetBack(
                isBefore,
                lambda: asked.append(self.client.resolve(SERVICE + 1, self.hostPath)),
                lambda: asked[-1].called,
            )
            checkSetBack(
                isBefore,
                lambda: connected.append(self.connect()),
                lambda: connected[-1].state == "ESTABLISHED",
            )
            checkSetBack(isBefore, lambda: connected[-1].disconnect(), lambda: connected[-1].state == "FREE")

    def test_failingHandlerLosesItsConnection(self) -> None:
        self.host.listen(SERVICE, Mock(side_effect=RuntimeError("no")))
        self.connect()
        self.wait(lambda: ConnectionRejected in self.kinds(0))
        self.assertEqual(len(self.flushLoggedErrors(RuntimeError)), 1)
        self.assertEqual(self.host._connections, {})

    def test_closeFailsPendingRequests(self) -> None:
        connection = self.opened()
        self.network.partition(*self.addresses)
        loading = connection.loadAlternatePath(ALTERNATE)
        self.assertRaises(InvalidRequest, connection.loadAlternatePath, ALTERNATE)
        resolving = self.client.resolve(SERVICE, self.hostPath)
        self.client.close()
        self.client.close()
        self.failureResultOf(loading, DeviceUnavailable)
        self.failureResultOf(resolving, DeviceUnavailable)
        self.assertFalse(self.client._timer.isPending)
        connection.disconnect()

    def test_pathAfterTheEnd(self) -> None:
        """An alternate path fails if the connection was rejected or has ended, or its manager is closed."""
        rejected = self.connect()
        self.wait(lambda: ConnectionRejected in self.kinds(0))
        self.failureResultOf(rejected.loadAlternatePath(ALTERNATE), DeviceUnavailable)
        ended, pending = self.opened(), self.connect()
        ended.disconnect()
        self.wait(lambda: TimewaitOver in self.kinds(0))
        self.failureResultOf(ended.loadAlternatePath(ALTERNATE), DeviceUnavailable)
        self.network.partition(*self.addresses)
        loading = pending.loadAlternatePath(ALTERNATE)
        loading.addErrback(lambda _: pending.loadAlternatePath(ALTERNATE))  # again, as it closes
        asked = self.connect()
        self.client.close()
        for each in (loading, *(old.loadAlternatePath(ALTERNATE) for old in (pending, asked))):
            self.failureResultOf(each, DeviceUnavailable)

    def test_invalidPathLeavesNothingPending(self) -> None:
        """An invalid path raises an exception, and another one can be loaded afterwards."""
        connection = self.opened()
        nothing: Any = None
        self.assertRaises(AttributeError, connection.loadAlternatePath, nothing)
        self.result(connection.loadAlternatePath(ALTERNATE))

    def test_tooLarge(self) -> None:
        """A service ID of more than 64 bits, or a LID of more than 16 bits, is refused."""
        for serviceID in (-1, 1 << 64):
            for call in (self.client.listen, self.client.serve, self.client.resolve):
                self.assertRaises(InvalidRequest, call, serviceID, self.hostPath)
        path = replace(self.hostPath, dlid=LID(1 << 16))
        self.assertRaises(InvalidRequest, self.client.connect, REQ(serviceID=SERVICE), path, self.clientEvent)
        self.assertEqual((self.client.listeners, self.client.states, self.client.counters), (0, {}, {}))

    def test_closedManager(self) -> None:
        """A closed manager refuses requests, sends nothing, and starts no timer."""
        again: list[Failure] = []

        def retry(failure: Failure) -> Deferred[Any]:
            again.append(failure)
            self.assertEqual(len(again), 1)  # otherwise C{close} would not return
            return self.client.resolve(SERVICE, self.hostPath).addErrback(retry)

        asked: Deferred[Any] = self.client.resolve(SERVICE, self.hostPath).addErrback(retry)
        self.client.close()
        self.failureResultOf(asked, DeviceUnavailable)
        self.assertRaises(DeviceUnavailable, self.connect)
        self.assertRaises(DeviceUnavailable, self.client.listen, SERVICE, self.clientEvent)
        self.assertRaises(DeviceUnavailable, self.client.serve, SERVICE, lambda request: SIDRREP())
        self.assertEqual((self.client.listeners, self.client.states, self.client.counters), (0, {}, {}))
        self.assertFalse(self.client._timer.isPending)

    def test_closedByItsHandler(self) -> None:
        """If an event handler closes the manager, no further events are delivered."""
        handled: list[Event] = []

        def accept(connection: CMConnection, event: Event) -> None:
            handled.append(event)
            if isinstance(event, ConnectionRequested):
                connection.accept(REP(localQPN=QPN(22)))
            else:
                self.host.close()

        self.patch(self, "clientEvent", lambda connection, event: None)
        self.host.listen(SERVICE, accept)
        for _ in range(2):
            self.connect()
        self.wait(lambda: len(handled) == 2)
        self.network.partition(*self.addresses)
        self.wait(lambda: len(handled) > 2, 300.0)
        self.assertEqual([type(each) for each in handled[2:]], [ConnectionTimedOut])
        self.assertEqual((self.host.states, self.host._connections), ({}, {}))
        self.assertFalse(self.host._timer.isPending)

    def test_rejectedAndUnansweredPaths(self) -> None:
        connection = self.opened(lambda _path, _pkey: (APStatus.GID_REJECTED, b""))
        self.assertEqual(
            self.failure(connection.loadAlternatePath(ALTERNATE), Refused).status, APStatus.GID_REJECTED
        )
        self.network.partition(*self.addresses)
        self.failure(connection.loadAlternatePath(ALTERNATE), PeerSilent)


class ClaimTests(PortCase):
    """Claims for service IDs where processes share an address."""

    share = 7
    isTaken = False

    def setUp(self) -> None:
        super().setUp()
        self.claimed: Counter[int] = Counter()
        directlyProvides(self, IServiceClaims)
        self.client._claims = ServiceClaims(self)

    def claimService(self, serviceID: int) -> Callable[[], None]:
        """Count the claims of each service, unless another process has it."""
        if self.isTaken:
            raise ResourceExhausted("the service is in use by another program")
        self.claimed[serviceID] += 1
        return lambda: self.claimed.subtract((serviceID,))

    def attempt(self, path: IBPath | None = None) -> CMConnection:
        """Begin a peer-to-peer connection."""
        request = REQ(serviceID=SERVICE, localQPN=QPN(next(self.numbers)), maxCMRetries=1)
        return self.client.connect(request, path or self.hostPath, self.clientEvent, isPeerToPeer=True)

    def test_peerToPeer(self) -> None:
        """Attempts of one service share a claim with its listener; it is released with the last of them."""
        counts: list[int] = []
        self.patch(self, "clientEvent", lambda connection, event: counts.append(self.claimed[SERVICE]))
        end = self.client.listen(SERVICE, self.clientEvent)
        for _ in range(2):
            self.attempt()
        self.assertEqual(self.claimed, {SERVICE: 1})
        end()
        end()
        self.wait(lambda: not self.client.states)  # rejected, since there is no listener
        self.assertEqual((counts, self.claimed), ([1, 1], {SERVICE: 0}))

    def test_established(self) -> None:
        """An established connection has no claim, so that others can meet by the service."""
        self.host.listen(SERVICE, self.hostEvent)
        self.attempt()
        self.wait(lambda: self.kinds(0)[-1:] == [ConnectionEstablished])
        self.assertEqual((self.client.states, self.claimed), ({"ESTABLISHED": 1}, {SERVICE: 0}))

    def test_timewait(self) -> None:
        """An attempt that has failed has no claim in its time-wait."""

        def clientEvent(connection: CMConnection, event: Event) -> None:
            self.received[0].append(event)
            if isinstance(event, ConnectionRequested):
                connection.accept(REP(localQPN=QPN(23)))
                self.network.partition(*self.addresses)

        self.patch(self, "clientEvent", clientEvent)
        self.host._core.guid = GUID(b"\xfe" * 8)  # a REQ that overtakes that of the client
        self.attempt()
        request = REQ(serviceID=SERVICE, localQPN=QPN(next(self.numbers)), maxCMRetries=1)
        self.host.connect(request, self.hostPath.reverse(), self.hostEvent, isPeerToPeer=True)
        self.wait(lambda: self.client.states == {"TIMEWAIT": 1})
        self.assertEqual((self.kinds(0)[-1], self.claimed), (ConnectionTimedOut, {SERVICE: 0}))

    def test_takenAtOneAddress(self) -> None:
        """A peer at the same address may have the service; it is claimed when that peer has ended."""
        self.isTaken = True
        self.attempt(replace(self.hostPath, dgid=self.hostPath.sgid))
        self.assertEqual((self.client.states, self.claimed), ({"REQ_SENT": 1}, {}))
        self.isTaken = False
        self.wait(lambda: self.claimed)
        self.assertEqual((self.client.states, self.claimed), ({"REQ_SENT": 1}, {SERVICE: 1}))
        self.wait(lambda: not self.client.states)
        self.assertEqual(self.claimed, {SERVICE: 0})

    def test_claimIsTriedAgain(self) -> None:
        """A claim that fails for lack of descriptors, for example, is tried again, without a traceback."""
        self.isTaken = True
        for _ in range(2):
            self.attempt(replace(self.hostPath, dgid=self.hostPath.sgid))
        claim = Mock(side_effect=[DeviceUnavailable("no UNIX socket")] * 2 + [lambda: None])
        self.patch(self, "claimService", claim)
        self.wait(lambda: claim.call_count == 3)
        self.assertNotIn(None, self.client._peerClaims.values())

    def test_takenAtAnotherAddress(self) -> None:
        """What a peer at another address sends would go to the process that has the service."""
        self.isTaken = True
        error = self.assertRaises(ResourceExhausted, self.attempt)
        self.assertIn("bindAddress=", str(error))
        self.assertEqual((self.client.states, self.client._peerClaims), ({}, {}))

    def test_failedAttempt(self) -> None:
        """An attempt that raises an exception releases its claim."""
        self.patch(self.client._core, "connect", Mock(side_effect=ResourceExhausted("a test's")))
        self.assertRaises(ResourceExhausted, self.attempt)
        self.assertEqual(self.claimed, {SERVICE: 0})

    def test_close(self) -> None:
        """A closed manager has released its claims; stopping a listener again has no effect."""
        ends = [self.client.listen(each, self.clientEvent) for each in (SERVICE, SERVICE + 1)]
        self.attempt()
        self.client.close()
        for end in ends:
            end()
        self.assertEqual(self.claimed, {SERVICE: 0, SERVICE + 1: 0})
