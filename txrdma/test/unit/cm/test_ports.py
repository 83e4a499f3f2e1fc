"""
Connections through management ports: software devices with queue pairs 1, and Deferreds.
"""

from __future__ import annotations

from itertools import count
from typing import cast

from twisted.internet.defer import CancelledError

from txrdma.cm.connection import CMConnection
from txrdma.cm.connections.queuepairs import toInit, toReceive, toSend
from txrdma.cm.core.alternate import acceptAnyPath, PathCheck
from txrdma.cm.core.events import (
    AlternatePathRequested,
    ConnectionEstablished,
    ConnectionRejected,
    ConnectionReplied,
    ConnectionRequested,
    Disconnected,
    Event,
    TimewaitOver,
)
from txrdma.cm.errors import PeerSilent
from txrdma.cm.layouts.messages import APStatus, LAP, REP, REQ
from txrdma.cm.layouts.paths import pathFor
from txrdma.cm.manager import ConnectionManager
from txrdma.error import DeviceUnavailable, InvalidRequest, Refused
from txrdma.iba.path import IBPath
from txrdma.iba.types import GID, QPN
from txrdma.iba.verbs import Operation, ReceiveRequest, SendRequest
from txrdma.mad.layouts.values import PathMTU
from txrdma.mad.ports.verbsport import IPollingReactor, VerbsPort
from txrdma.mad.server import MADServer
from txrdma.soft.device import SoftDevice
from txrdma.test.unit.mad.test_verbsport import VerbsPortCase
from txrdma.testing.verbs.ends import End

SERVICE = 0x1000000000000042


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
        self.way = IBPath(sgid=source, dgid=destination, hopLimit=64, packetLifeTime=12)

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
        return self.client.connect(request, self.way, self.clientEvent)

    def opened(self, checkPath: PathCheck = acceptAnyPath) -> CMConnection:
        """Return an established connection."""
        self.host.listen(SERVICE, self.hostEvent, checkPath=checkPath)
        connection = self.connect()
        self.wait(lambda: self.kinds(1)[-1:] == [ConnectionEstablished])
        return connection

    def kinds(self, which: int) -> list[type]:
        """Return the kinds of events that an application got."""
        return [type(event) for event in self.received[which]]


class ConnectionTests(PortCase):
    """Connections, from the first to the last message."""

    def test_connectionIsMadeEndedAndForgotten(self) -> None:
        connection = self.opened()
        self.assertEqual(connection.state, "ESTABLISHED")
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

    def test_failingHandlerLosesItsConnection(self) -> None:

        def fail(connection: CMConnection, event: Event) -> None:
            raise RuntimeError("no")

        self.host.listen(SERVICE, fail)
        self.connect()
        self.wait(lambda: ConnectionRejected in self.kinds(0))
        self.assertEqual(len(self.flushLoggedErrors(RuntimeError)), 1)
        self.assertEqual(self.host._connections, {})

    def test_closeFailsPendingRequests(self) -> None:
        connection = self.opened()
        self.network.partition(*self.addresses)
        loading = connection.loadAlternatePath(self.other_(1))
        resolving = self.client.resolve(SERVICE, self.way)
        self.client.close()
        self.client.close()
        self.failureResultOf(loading, DeviceUnavailable)
        self.failureResultOf(resolving, DeviceUnavailable)
        self.assertIsNone(self.client._timer)
        connection.disconnect()

    def other_(self, number: int) -> IBPath:
        ends = [GID.fromIP(f"10.{number}.0.{host}") for host in (1, 2)]
        return IBPath(sgid=ends[0], dgid=ends[1], hopLimit=64, packetLifeTime=12)

    def test_alternatePath(self) -> None:
        connection = self.opened()
        path = pathFor(self.other_(1))
        self.assertEqual(self.result(connection.loadAlternatePath(self.other_(1))), path)
        self.assertEqual(connection.alternate, path)
        self.assertRaises(InvalidRequest, connection.loadAlternatePath, self.other_(2))
        for each in (connection, self.made[0]):
            each.migrated()
        self.assertEqual((connection.primary, connection.alternate), (path, None))

    def test_rejectedAndUnansweredPaths(self) -> None:
        connection = self.opened(lambda _path, _pkey: (APStatus.GID_REJECTED, b""))
        loading = connection.loadAlternatePath(self.other_(1))
        self.wait(lambda: loading.called)
        self.assertEqual(self.failureResultOf(loading, Refused).value.status, APStatus.GID_REJECTED)
        self.network.partition(*self.addresses)
        loading = connection.loadAlternatePath(self.other_(1))
        self.wait(lambda: loading.called)
        self.failureResultOf(loading, PeerSilent)

    def test_cancelledLAPStillCounts(self) -> None:
        connection = self.opened()
        loading = connection.loadAlternatePath(self.other_(1))
        loading.cancel()
        self.failureResultOf(loading, CancelledError)
        self.wait(lambda: connection.alternate is not None)
        self.assertEqual(self.client.counters["sent " + LAP.__name__], 1)

    def test_disconnectFailsPendingLAP(self) -> None:
        connection = self.opened()
        loading = connection.loadAlternatePath(self.other_(1))
        connection.disconnect()
        self.wait(lambda: loading.called)
        self.failureResultOf(loading, DeviceUnavailable)


class QueuePairTests(PortCase):
    """Queue pairs connected by these messages."""

    def setUp(self) -> None:
        super().setUp()
        self.ends = [End(device) for device in self.devices]
        for end in self.ends:
            self.addCleanup(end.close)

    def prepare(self, which: int, connection: CMConnection, reply: REP) -> None:
        """Bring a queue pair to RTS."""
        pair = self.ends[which].queuePair
        pair.modify(toInit(1, 1))
        index = self.ends[which].gidIndex
        pair.modify(toReceive(connection.request, reply, connection.isActive, sgidIndex=index))
        pair.modify(toSend(connection.request, reply, connection.isActive))

    def hostEvent(self, connection: CMConnection, event: Event) -> None:
        """Accept with a real queue pair."""
        self.received[1].append(event)
        if isinstance(event, ConnectionRequested):
            reply = REP(localQPN=self.ends[1].queuePair.number, startingPSN=0xABCDEF, responderResources=1,
                        initiatorDepth=1, rnrRetryCount=7)  # fmt: skip
            self.prepare(1, connection, reply)
            connection.accept(reply)

    def clientEvent(self, connection: CMConnection, event: Event) -> None:
        """Confirm with a real queue pair."""
        self.received[0].append(event)
        if isinstance(event, ConnectionReplied):
            self.prepare(0, connection, event.reply)
            connection.ready()

    def test_agreedQueuePairsCarryData(self) -> None:
        self.host.listen(SERVICE, self.hostEvent)
        request = REQ(serviceID=SERVICE, localQPN=self.ends[0].queuePair.number, startingPSN=0x123456,
                      pathMTU=PathMTU.MTU_1024, retryCount=7, rnrRetryCount=7, maxCMRetries=7,
                      responderResources=1, initiatorDepth=1, remoteCMResponseTimeout=14,
                      localCMResponseTimeout=14)  # fmt: skip
        self.client.connect(request, self.way, self.clientEvent)
        self.wait(lambda: self.kinds(1)[-1:] == [ConnectionEstablished])
        for sender, receiver in (self.ends, self.ends[::-1]):
            receiver.queuePair.postReceive([ReceiveRequest(1, [receiver.segment(0)])])
            sender.memory.view[128:192] = bytes(range(64))
            sender.queuePair.postSend([SendRequest(2, Operation.SEND, [sender.segment(128)])])
            self.wait(lambda end=receiver: bool(end.poll() or end.received))  # type: ignore[misc]  # default
            self.assertEqual(bytes(receiver.memory.view[:64]), bytes(range(64)))
        sent = self.ends[0].queuePair.query()
        self.assertEqual((sent.rqPSN is not None, sent.pathMTU), (True, 3))
