"""Managers at ports of a simulated InfiniBand fabric: messages use LIDs, and paths from several ports."""

from __future__ import annotations

from itertools import count

from twisted.internet.defer import Deferred

from txrdma.cm.connection import CMConnection
from txrdma.cm.connections.queuepairs import addressOf
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
from txrdma.iba.types import GID, QPN
from txrdma.mad.layouts.messages import ClassPortInfo
from txrdma.mad.paths import toLID
from txrdma.mad.server import MADServer
from txrdma.test.support.mad.simulated import FabricTestCase

SERVICE = 0x1000000000000042


class ManagersCase(FabricTestCase):
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

    def pathFrom(self, number: int = 1) -> IBPath:
        """Return the path from a port of C{b} to C{c}."""
        source, destination = self.fabric.port("b", number).end, self.fabric.port("c").end
        return IBPath(
            slid=source.lid,
            dlid=destination.lid,
            sgid=self.client._agents[number - 1].port.endPort.gids[0],
            dgid=self.host._agent.port.endPort.gids[0],
            packetLifeTime=12,
        )

    def serve(self, connection: CMConnection, event: Event) -> None:
        if isinstance(event, ConnectionRequested):
            self.served.append(connection)
            connection.accept(REP(localQPN=QPN(next(self.numbers))))
        elif isinstance(event, AlternatePathRequested):
            connection.replyAlternatePath(event.transactionID)
        elif isinstance(event, Disconnected):
            connection.disconnect()

    def eventReceived(self, connection: CMConnection, event: Event) -> None:
        """Record an event of the client, and confirm it on request."""
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
        connection = self.client.connect(request, self.pathFrom(), self.eventReceived)
        self.pump(10)
        return connection

    def findOther(self, path: IBPath, *sources: GID) -> IBPath | None:
        """Find another path to the destination of a path from one of the ports with these GIDs."""
        resolver = self.client.resolverFor(path)
        assert resolver is not None and path.dgid is not None
        found: IBPath | None = self.answerTo(
            Deferred.fromCoroutine(resolver.findOther(path, path.dgid, sources))
        )
        return found

    def migrate(self, connection: CMConnection, path: IBPath) -> None:
        """Load an alternate path, and let both queue pairs migrate to it."""
        loaded = self.answerTo(connection.loadAlternatePath(path))
        self.assertEqual(loaded, pathFor(path))
        for each in (connection, self.served[0]):
            each.migrated()

    def assertEndsWithoutRetry(self, connection: CMConnection) -> None:
        """Assert that the first DREQ is answered."""
        connection.disconnect()
        self.pump(60)
        self.assertEqual(self.received[-2:], [Disconnected, TimewaitOver])
        self.assertEqual(self.client.counters["retried DREQ"], 0)


class FabricTests(ManagersCase):
    """Connections, and an alternate path from another port."""

    def test_classPortInfo(self) -> None:
        """A manager answers a Get of ClassPortInfo, with the capabilities RC and SIDR."""
        path = toLID(self.client._agent.port.endPort, self.fabric.port("c").end.lid)
        found = self.answerTo(self.client._agent.CommMgtGet(ClassPortInfo, path))
        self.assertEqual((found.classVersion, int(found.capabilityMask)), (2, 0x2200))

    def test_pathFromSA(self) -> None:
        """The manager's resolver queries the subnet administration for LIDs, and uses the same GIDs."""
        expected, there = self.pathFrom(), self.host._agent.port.endPort
        resolver = self.client.resolverFor()
        assert resolver is not None
        for target in (there.gids[0], str(there.gids[0]), there.portGUID, there.lid, "c"):
            resolving = resolver.resolve(target)
            self.clock.pump([0.01] * 10)
            path = self.successResultOf(resolving)
            self.assertEqual((path.slid, path.dlid), (expected.slid, expected.dlid))
            self.assertEqual((path.sgid, path.dgid), (expected.sgid, expected.dgid))
            self.assertIsNotNone(path.packetLifeTime)

    def test_pathFromAnotherPort(self) -> None:
        """The subnet administration finds the path from another port, unless that port is down."""
        first, second = self.pathFrom(1), self.pathFrom(2)
        assert first.sgid is not None and second.sgid is not None
        found = self.findOther(first, second.sgid, first.sgid)
        assert found is not None
        self.assertEqual((found.sgid, found.slid, found.dlid), (second.sgid, second.slid, second.dlid))
        connection = self.connect()
        self.migrate(connection, found)
        self.fabric.cut("b", 1)
        self.assertEndsWithoutRetry(connection)
        self.fabric.heal("b", 1)
        self.pump()
        self.fabric.cut("b", 2)
        self.assertIsNone(self.findOther(first, second.sgid))

    def test_noOtherPath(self) -> None:
        """A port with one LID has no other path, whichever of its GIDs is used."""
        path = self.pathFrom()
        assert path.sgid is not None
        self.assertIsNone(self.findOther(path, path.sgid))


class SeveralLIDsTests(ManagersCase):
    """Each port has two LIDs, whose routes take different cables between the switches."""

    options = {"lmc": 1, "resweepSeconds": None}

    def test_pathByOtherLIDs(self) -> None:
        """Without another port, the alternate path has other LIDs at both ends; it works if a cable fails."""
        primary = self.pathFrom()
        assert primary.sgid is not None
        found = self.findOther(primary, primary.sgid)
        assert found is not None
        self.assertEqual((found.sgid, found.dgid), (primary.sgid, primary.dgid))
        self.assertEqual((found.slid, found.dlid), (primary.slid + 1, primary.dlid + 1))
        self.assertEqual(addressOf(pathFor(found), lidMask=1).sourcePathBits, 1)
        connection = self.connect()
        self.migrate(connection, found)
        self.cutCableOf(primary.dlid)
        self.assertEndsWithoutRetry(connection)

    def test_cableIsThatOfPrimaryPath(self) -> None:
        """The primary path uses the cable whose failure L{test_pathByOtherLIDs} simulates."""
        connection = self.connect()
        self.cutCableOf(self.pathFrom().dlid)
        connection.disconnect()
        self.pump(60)
        self.assertGreater(self.client.counters["retried DREQ"], 0)

    def cutCableOf(self, lid: int) -> None:
        """Cut the cable between the switches that packets to a LID take."""
        left = self.fabric.node("left")
        self.fabric.cut("left", self.fabric.linearOf(left)[lid])
