"""
Managers at ports of a simulated InfiniBand fabric: messages use LIDs and links that may lose them.
"""

from __future__ import annotations

from itertools import count

from txrdma.cm.connection import CMConnection
from txrdma.cm.core.events import (
    AlternatePathRequested,
    ConnectionReplied,
    ConnectionRequested,
    Disconnected,
    Event,
    TimewaitOver,
)
from txrdma.cm.layouts.messages import REP, REQ
from txrdma.cm.layouts.paths import pathFor
from txrdma.cm.manager import ConnectionManager
from txrdma.iba.path import IBPath
from txrdma.iba.types import QPN
from txrdma.mad.server import MADServer
from txrdma.test.support.mad.simulated import FabricTestCase

SERVICE = 0x1000000000000042


class FabricTests(FabricTestCase):
    """A manager at C{b}, which has two ports, and one at C{c}, which listens."""

    def setUp(self) -> None:
        super().setUp()
        near, further, there = self.agentAt("b", 1), self.agentAt("b", 2), self.agentAt("c")
        self.client = ConnectionManager(MADServer(near), None, [MADServer(further)])
        self.host = ConnectionManager(MADServer(there))
        for manager in (self.client, self.host):
            self.addCleanup(manager.close)
        self.received: list[type[Event]] = []
        self.served: list[CMConnection] = []
        self.numbers = count(21)
        self.end = self.host.listen(SERVICE, self.serve)

    def way(self, number: int = 1) -> IBPath:
        """The path from a port of C{b} to C{c}."""
        source, destination = self.fabric.port("b", number).end, self.fabric.port("c").end
        return IBPath(
            slid=source.lid,
            dlid=destination.lid,
            sgid=self.client._agents[number - 1].port.endPort.gids[0],
            dgid=self.host._agent.port.endPort.gids[0],
            packetLifeTime=12,
        )

    def test_pathFromSA(self) -> None:
        """The manager's resolver asks the subnet administration for LIDs, and keeps the GIDs."""
        expected, there = self.way(), self.host._agent.port.endPort
        assert self.client.resolver is not None
        for target in (there.gids[0], str(there.gids[0]), there.portGUID, there.lid):
            resolving = self.client.resolver.resolve(target)
            self.clock.pump([0.01] * 10)
            path = self.successResultOf(resolving)
            self.assertEqual((path.slid, path.dlid), (expected.slid, expected.dlid))
            self.assertEqual((path.sgid, path.dgid), (expected.sgid, expected.dgid))
            self.assertIsNotNone(path.packetLifeTime)

    def serve(self, connection: CMConnection, event: Event) -> None:
        if isinstance(event, ConnectionRequested):
            self.served.append(connection)
            connection.accept(REP(localQPN=QPN(next(self.numbers))))
        elif isinstance(event, AlternatePathRequested):
            connection.replyAlternatePath(event.transactionID)
        elif isinstance(event, Disconnected):
            connection.disconnect()

    def eventReceived(self, connection: CMConnection, event: Event) -> None:
        """Record an event of the client; confirm when requested."""
        self.received.append(type(event))
        if isinstance(event, ConnectionReplied):
            connection.ready()

    def connect(self, serviceID: int = SERVICE) -> CMConnection:
        """Connect, and run until the outcome is known."""
        request = REQ(
            serviceID=serviceID,
            localQPN=QPN(next(self.numbers)),
            remoteCMResponseTimeout=14,
            localCMResponseTimeout=14,
            maxCMRetries=7,
        )
        connection = self.client.connect(request, self.way(), self.eventReceived)
        self.pump(10)
        return connection

    def test_lossyLinks(self) -> None:
        self.fabric.wire.loss = 0.05
        connections = [self.connect() for _ in range(20)]
        self.assertEqual({each.state for each in (*connections, *self.served)}, {"ESTABLISHED"})
        for each in connections:
            each.disconnect()
        self.pump(120)
        self.assertEqual(self.received.count(Disconnected), len(connections))
        self.assertGreater(self.client.counters["retried REQ"] + self.host.counters["retried REP"], 0)
        self.assertEqual([len(each._core) for each in (self.client, self.host)], [0, 0])

    def test_messagesTakeAlternatePathAfterMigration(self) -> None:
        connection = self.connect()
        loaded = self.answerTo(connection.loadAlternatePath(self.way(2)))
        self.assertEqual(loaded, pathFor(self.way(2)))
        for each in (connection, self.served[0]):
            each.migrated()
        self.fabric.cut("b", 1)
        connection.disconnect()
        self.pump(60)
        self.assertEqual(self.received[-2:], [Disconnected, TimewaitOver])
        self.assertEqual(self.client.counters["retried DREQ"], 0)
