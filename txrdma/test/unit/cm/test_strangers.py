"""Messages that belong to no connection of a manager, or have arbitrary contents."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from twisted.trial.unittest import SynchronousTestCase

from txrdma.cm.layouts.messages import (
    APR,
    APStatus,
    DREP,
    DREQ,
    LAP,
    MessageKind,
    MRA,
    REJ,
    RejectReason,
    REP,
    RTU,
)
from txrdma.cm.layouts.paths import pathFor
from txrdma.iba.path import IBPath
from txrdma.iba.types import GID, QPN
from txrdma.kit.wire import Layout
from txrdma.test.support.cm.ends import World
from txrdma.test.support.cm.managercase import ACCEPTED, ManagerCase, OPENED
from txrdma.test.support.cm.messages import KINDS


class StrangerTests(ManagerCase):
    """Messages that match no connection."""

    def setUp(self) -> None:
        super().setUp()
        self.server.listen()
        self.mine = self.client.connect(self.server)
        self.world.run(until=1.0)
        self.remote = self.server.happened[0][0].connection

    def answers(self, message: Layout) -> list[Layout]:
        """Return the server's answer to a message from the client's address."""
        self.server.manager.received(message, 5, self.client.pathTo(self.server), self.world.now)
        sent = self.server.manager.outgoing()
        self.assertEqual({each.transactionID for each in sent} | {5}, {5})
        return [each.message for each in sent]

    def test_unknownMessagesAreAnsweredOnlyWhereExpected(self) -> None:
        ids = {"localCommID": 7, "remoteCommID": 8}
        (rejection,) = self.answers(REP(localCommID=7, remoteCommID=8))
        assert isinstance(rejection, REJ)
        self.assertEqual(rejection.reason, RejectReason.INVALID_COMM_ID)
        self.assertEqual((rejection.localCommID, rejection.remoteCommID), (8, 7))
        (released,) = self.answers(DREQ(localCommID=7, remoteCommID=8))
        assert isinstance(released, DREP)
        self.assertEqual((released.localCommID, released.remoteCommID), (8, 7))
        (response,) = self.answers(LAP(localCommID=7, remoteCommID=8))
        assert isinstance(response, APR)
        self.assertEqual(response.apStatus, APStatus.INVALID_COMM_ID)
        for kind in (RTU, DREP, APR, MRA, REJ):
            self.assertEqual(self.answers(kind().replace(**ids)), [], kind)
            self.assertEqual(self.server.manager.counters[f"stray {kind.__name__}"], 1)

    def test_guessedIDsDoNotDisturb(self) -> None:
        remote = self.remote
        known, peer = remote.localCommID, remote.remoteCommID
        for kind in (RTU, DREP, APR, MRA, REJ, REP, DREQ, LAP):
            self.answers(kind().replace(localCommID=peer ^ 1, remoteCommID=known))
        self.answers(REJ(localCommID=peer ^ 1, remoteCommID=known, messageRejected=MessageKind.LAP))
        self.answers(REJ(localCommID=peer, remoteCommID=known ^ 1, reason=RejectReason.TIMEOUT))
        self.assertEqual(self.answers(DREQ(localCommID=peer, remoteCommID=known, remoteQPN=QPN(1))), [])
        self.assertEqual(remote.state, "ESTABLISHED")
        self.assertEqual(self.eventNames(self.server), ACCEPTED)

    def test_replays(self) -> None:
        """Old messages with valid IDs change nothing while the connection exists."""
        opening = self.mine.connection.opening
        assert opening.reply is not None
        self.assertEqual(self.answers(opening.request), [])
        self.assertEqual(self.server.manager.counters["duplicate REQ"], 1)
        self.client.manager.received(opening.reply, 5, self.server.pathTo(self.client), self.world.now)
        (ready,) = self.client.manager.outgoing()
        self.assertIsInstance(ready.message, RTU)
        self.assertEqual(self.client.manager.counters["duplicate REP"], 1)
        self.assertEqual((self.eventNames(self.client), self.eventNames(self.server)), (OPENED, ACCEPTED))

    def test_REJEndsConnectionUnknownToPeer(self) -> None:
        rejection = REJ(
            localCommID=self.remote.remoteCommID,
            remoteCommID=self.remote.localCommID,
            messageRejected=MessageKind.LAP,
            reason=RejectReason.INVALID_COMM_ID,
        )
        other = pathFor(IBPath(sgid=GID.fromIP("10.1.0.1"), dgid=GID.fromIP("10.1.0.2"), hopLimit=64))
        self.client.do(self.mine, lambda: self.mine.connection.loadAlternatePath(other, self.world.now))
        self.world.run(until=2.0)
        self.assertIn("AlternatePathLoaded", self.eventNames(self.client))
        self.answers(rejection)
        self.assertEqual(self.remote.state, "ESTABLISHED")
        assert self.remote.alternate is not None
        self.remote.alternate.isNegotiated = False
        self.answers(rejection)
        self.assertEqual(self.remote.state, "TIMEWAIT")


class LiarTests(SynchronousTestCase):
    """Messages with arbitrary contents."""

    slowBecause = "Hypothesis runs a hundred examples"

    MESSAGES = st.tuples(st.sampled_from(KINDS), st.binary(min_size=232, max_size=232), st.integers(0, 3))

    @given(st.lists(st.tuples(MESSAGES, st.booleans()), max_size=12))
    def test_arbitraryMessagesEventuallyEnd(
        self, messages: list[tuple[tuple[type[Layout], bytes, int], bool]]
    ) -> None:
        world = World()
        client, server = world.end("10.0.0.1"), world.end("10.0.0.2")
        server.listen(backlog=4)
        connection = client.connect(server).connection
        world.run(until=0.05)
        for (kind, raw, which), isServer in messages:
            message = kind.decode(raw)
            names = {field.name for field in kind.fields}
            ids = (connection.localCommID, connection.remoteCommID)
            ours, remote = ids if isServer else ids[::-1]
            if which & 1 and "localCommID" in names:
                message = message.replace(localCommID=ours)
            if which & 2 and "remoteCommID" in names:
                message = message.replace(remoteCommID=remote)
            one, other = (server, client) if isServer else (client, server)
            one.manager.received(message, 7, other.pathTo(one), world.now)
            one.turn()
            world.run(until=world.now + 0.02)
        client.disconnect(next(iter(managed for managed, _ in client.happened)))
        for end in (client, server):
            for managed in list(end.manager._connections.values()):
                end.disconnect(managed)
        world.run(until=world.now + 1e6)
        self.assertEqual((len(client.manager), len(server.manager)), (0, 0))
