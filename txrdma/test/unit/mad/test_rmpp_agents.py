"""
Long messages between agents: tables through bad wires, long questions, and what callers hear when they break.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from txrdma.iba.path import IBPath
from txrdma.iba.types import GID, GUID, LID
from txrdma.mad.agent import MADAgent
from txrdma.mad.core import rmpp as _rmpp
from txrdma.mad.core.calls import NEXT_SEGMENT_SECONDS
from txrdma.mad.core.frames import frame
from txrdma.mad.core.transfers import RMPPTransfers
from txrdma.mad.errors import MADError, MADTimeoutError, MADTransferError
from txrdma.mad.layouts.attributes import ManagementClass, Method
from txrdma.mad.layouts.messages import MADRequest, RMPPHeader, RMPPStatus, RMPPType
from txrdma.mad.layouts.pma import PortCounters
from txrdma.mad.layouts.sa import MultiPathRecord, NodeRecord, PathRecord
from txrdma.mad.layouts.smp import NodeDescription
from txrdma.mad.server import MADServer
from txrdma.test.support.mad.pairs import Answers, pass_, TO_2, Wire, WiredPort
from txrdma.test.unit.mad.test_umad import UmadCase

ADMINISTRATION = ManagementClass.SUBN_ADM
SOME = [GID.fromParts(0xFE80 << 48, GUID.fromInt(number)) for number in range(254)]
QUESTION = MultiPathRecord.between(SOME[:100], SOME[100:], numbPath=7, reversible=True)
PATHS = [PathRecord(dlid=LID(number)) for number in range(300)]


class BadWire(Wire):
    """
    One that doubles and delays, too.

    @ivar duplication: how many of all come twice.
    @ivar jitter: seconds that each may take longer.
    """

    duplication = jitter = 0.0

    def carry(self, datagram: bytes, path: IBPath, source: WiredPort) -> None:
        for _ in range(1 + (self.random.random() < self.duplication)):
            if self.jitter:
                self.clock.callLater(
                    self.jitter * self.random.random(), super().carry, datagram, path, source
                )
            else:
                super().carry(datagram, path, source)


def records(count: int) -> list[NodeRecord]:
    """Each of them different."""
    return [
        NodeRecord(
            lid=LID(number % 0xBFFF + 1),
            nodeDescription=NodeDescription(nodeString=f"host {number}".encode().ljust(64, b"\0")),
        )
        for number in range(count)
    ]


class AgentCase(SynchronousTestCase):
    """An agent that asks, and one that answers."""

    def setUp(self) -> None:
        self.connect()

    def connect(
        self, seed: int = 0, loss: float = 0.0, duplication: float = 0.0, jitter: float = 0.0
    ) -> None:
        """With a wire that does this."""
        self.clock = Clock()
        self.wire = BadWire(self.clock, seed, loss)
        self.wire.duplication, self.wire.jitter = duplication, jitter
        self.agent, self.other = (MADAgent(self.clock, port, timeoutSeconds=0.5) for port in self.wire.ports)
        self.server = MADServer(self.other)

    def serve(self, how: Callable[[MADRequest], object]) -> Answers:
        answers = Answers(how)
        methods = Method.GET_TABLE, Method.GET_MULTI, Method.GET
        self.server.handle(ADMINISTRATION, answers, methods)
        return answers

    def result(self, call: Any, seconds: float = 600.0) -> Any:
        """What comes of it."""
        while not call.called and self.clock.seconds() < seconds:
            calls = self.clock.getDelayedCalls()
            self.clock.advance(max(0.0, min(each.getTime() for each in calls) - self.clock.seconds()))
        return self.successResultOf(call)

    def sentTypes(self, lid: int) -> list[tuple[int, int]]:
        """Types and status of the packets of long messages that this one has sent."""
        headers = [RMPPHeader.decode(datagram, 24) for source, datagram in self.wire.sent if source == lid]
        return [(header.type, header.status) for header in headers if header.active]

    def quiet(self) -> None:
        """Nothing is left, in the end."""
        pass_(self.clock, 60, 0.5)
        self.assertEqual(self.clock.getDelayedCalls(), [])
        for agent in (self.agent, self.other):
            self.assertEqual(
                (len(agent._core._transactions), agent._core._long._incoming, agent._core._long._outgoing),
                (0, {}, {}),
            )


class TableTests(AgentCase):
    """Tables of node records, which take many segments."""

    slowBecause = "a table of hundreds of segments is sent through a bad network"

    TABLE = records(2_000)

    @settings(max_examples=4, deadline=None)
    @given(
        wire=st.sampled_from([(0.05, 0.0, 0.0), (0.05, 0.05, 0.003), (0.0, 0.2, 0.01)]),
        seed=st.integers(0, 1 << 30),
    )
    def test_lossy(self, wire: tuple[float, float, float], seed: int) -> None:
        """All records arrive unchanged, though packets are lost, duplicated and reordered."""
        self.connect(seed, *wire)
        self.serve(lambda request: self.TABLE)
        found: Sequence[NodeRecord] = self.result(self.agent.SubnAdmGetTable(NodeRecord, TO_2, retries=9))
        self.assertEqual(len(found), len(self.TABLE))
        self.assertTrue(found == self.TABLE)
        self.quiet()

    def test_empty(self) -> None:
        """A table without records is a long message of one segment with nothing in it."""
        self.serve(lambda request: [])
        self.assertEqual(self.result(self.agent.SubnAdmGetTable(NodeRecord, TO_2)), [])
        header = RMPPHeader.decode(self.wire.sent[1][1], 24)
        self.assertEqual((header.active, header.first, header.last, header.data2), (True, True, True, 20))
        self.quiet()

    def test_tooLong(self) -> None:
        """A table longer than our memory is stopped, and the caller hears why."""
        self.patch(_rmpp, "LONGEST_MESSAGE", 100 * 112)
        self.serve(lambda request: self.TABLE)
        call = self.agent.SubnAdmGetTable(NodeRecord, TO_2)
        pass_(self.clock, 1)
        error = self.failureResultOf(call, MADTransferError).value
        self.assertEqual((error.status, error.byPeer), (RMPPStatus.RESOURCES_EXHAUSTED, False))
        self.assertIn("resources exhausted", str(error))
        self.assertEqual(self.sentTypes(1)[-1], (RMPPType.STOP, RMPPStatus.RESOURCES_EXHAUSTED))
        self.assertLess(len(self.sentTypes(2)), 500)
        self.quiet()

    def test_cutOff(self) -> None:
        """A sender that falls silent is asked once more, by another name; then that table is whole."""
        served = self.serve(lambda request: self.TABLE[:500])
        call = self.agent.SubnAdmGetTable(NodeRecord, TO_2, retries=1)
        pass_(self.clock, 0.004)
        self.wire.lose = lambda datagram: True
        pass_(self.clock, NEXT_SEGMENT_SECONDS / 2, 0.01)
        self.assertNoResult(call)
        pass_(self.clock, NEXT_SEGMENT_SECONDS / 2 - 0.1, 0.01)
        self.wire.lose = lambda datagram: False
        found = self.result(call)
        self.assertTrue(found == self.TABLE[:500])
        first, second = (request.header.transactionID & 0xFFFFFFFF for request in served.asked)
        self.assertNotEqual(first, second)
        self.assertNotIn(RMPPStatus.SEGMENT_TOO_BIG, [status for _, status in self.sentTypes(2)])
        self.quiet()

    def test_senderGivesUp(self) -> None:
        """What the sender says when it gives up is what the caller hears."""
        self.serve(lambda request: self.TABLE)
        call = self.agent.SubnAdmGetTable(NodeRecord, TO_2)
        pass_(self.clock, 0.01)
        datagram = next(datagram for source, datagram in self.wire.sent if source == 2)
        header = RMPPHeader.decode(datagram, 24).replace(
            type=RMPPType.ABORT, status=RMPPStatus.TOO_MANY_RETRIES, data1=0, data2=0
        )
        came = self.wire.ports[0].pathOf(IBPath(slid=LID(2), dlid=LID(1)))
        self.agent.received(datagram[:24] + header.encode() + datagram[36:], came)
        error = self.failureResultOf(call, MADTransferError).value
        self.assertEqual((error.status, error.byPeer), (RMPPStatus.TOO_MANY_RETRIES, True))
        self.quiet()

    def test_refusedAtLength(self) -> None:
        """An answer with a status is an error, though it be a long one."""
        self.agent.timeoutSeconds = 60.0
        call = self.agent.SubnAdmGetTable(NodeRecord, TO_2)
        asked = self.wire.sent[-1][1]
        identifier = int.from_bytes(asked[8:16], "big")
        template = frame(ADMINISTRATION, Method.GET_TABLE_RESP, identifier, 0x11, 0, b"", status=0x0300)
        server = RMPPTransfers()
        server.send(template, bytes(112), IBPath(dlid=LID(1)), 0.0)
        for packet in server.outgoing():
            self.agent.received(packet.datagram, IBPath(slid=LID(2), dlid=LID(1)))
        self.assertEqual(self.failureResultOf(call, MADError).value.status, 0x0300)

    def test_another(self) -> None:
        """A long message of another class that has a call's transaction is nothing to it."""
        self.wire.lose = lambda datagram: True
        call = self.agent.PerformanceGet(PortCounters, TO_2, retries=0)
        identifier = int.from_bytes(self.wire.sent[-1][1][8:16], "big")
        template = frame(ADMINISTRATION, Method.GET_TABLE_RESP, identifier, 0x11, 0, b"")
        server = RMPPTransfers()
        server.send(template, bytes(1000), IBPath(dlid=LID(1)), 0.0)
        for packet in server.outgoing():
            self.agent.received(packet.datagram, IBPath(slid=LID(2), dlid=LID(1)))
        pass_(self.clock, 0.4, 0.1)
        self.assertNoResult(call)
        pass_(self.clock, 0.2, 0.1)
        self.failureResultOf(call, MADTimeoutError)
        self.quiet()

    def test_namesakes(self) -> None:
        """When a stranger's table breaks, our call that has the same transaction goes on."""
        self.serve(lambda request: self.TABLE[:100])
        self.agent.SubnAdmGetTable(NodeRecord, TO_2).addErrback(lambda failure: None)
        pass_(self.clock, 0.003)
        identifier = int.from_bytes(self.wire.sent[0][1][8:16], "big")
        self.other._core._transactions._drawn.append(identifier)
        ours = self.other.SubnAdmGet(NodeRecord, IBPath(dlid=LID(1)), retries=0, timeoutSeconds=30.0)
        self.assertEqual(self.wire.sent[-1][1][12:16], self.wire.sent[0][1][12:16])
        self.wire.lose = lambda datagram: True
        pass_(self.clock, 25.0, 0.1)
        self.assertEqual(self.other._core._long._outgoing, {})
        self.assertNoResult(ours)
        pass_(self.clock, 6.0, 0.1)
        self.failureResultOf(ours, MADTimeoutError)


class QuestionTests(AgentCase):
    """Questions that are long themselves (IBA 13.6.6.3)."""

    @settings(max_examples=4, deadline=None)
    @given(
        wire=st.sampled_from([(0.0, 0.0, 0.0), (0.1, 0.0, 0.0), (0.05, 0.1, 0.003)]),
        seed=st.integers(0, 1 << 30),
    )
    def test_doubleSided(self, wire: tuple[float, float, float], seed: int) -> None:
        """Long questions come whole, and so do their long answers."""
        self.connect(seed, *wire)
        served = self.serve(lambda request: PATHS)
        found = self.result(self.agent.SubnAdmGetMulti(QUESTION, TO_2, retries=20))
        self.assertTrue(found == PATHS)
        request = served.asked[-1]
        self.assertEqual(request.payload, QUESTION.record)
        self.assertEqual(request.data, QUESTION.record.encode() + QUESTION.more)
        self.assertEqual(request.frame.componentMask, QUESTION.mask)  # type: ignore[attr-defined]  # of an SA's
        self.quiet()

    def test_unheard(self) -> None:
        """A long question that nobody hears ends, as does one that nobody answers."""
        self.serve(lambda request: None)
        for lose in (lambda datagram: True, lambda datagram: False):
            self.wire.lose = lose
            call = self.agent.SubnAdmGetMulti(QUESTION, TO_2, retries=1)
            pass_(self.clock, 60, 0.05)
            self.failureResultOf(call, MADTimeoutError, MADTransferError)
        self.quiet()

    def test_cancelled(self) -> None:
        """Who no longer asks tells who is being asked."""
        served = self.serve(lambda request: PATHS)
        call = self.agent.SubnAdmGetMulti(QUESTION, TO_2)
        pass_(self.clock, 0.001)
        call.addErrback(lambda failure: None)
        call.cancel()
        self.assertEqual(self.sentTypes(1)[-1], (RMPPType.ABORT, RMPPStatus.UNSPECIFIED))
        pass_(self.clock, 1)
        self.assertEqual(served.asked, [])
        self.quiet()


class KernelQuestionTests(UmadCase):
    """The same, where the kernel cuts and joins."""

    def test_doubleSided(self) -> None:
        """The kernel gets all of a question at once, flagged as a long one, and brings all of the answer."""
        for theirs, ours in ((True, True), (False, False)):
            client, server = self.agent("roce0", ours), self.agent("roce1", theirs)
            served = self.serve(server, ADMINISTRATION, lambda request: PATHS, Method.GET_MULTI)
            before = len(self.kernel.sent)
            found = self.result(client.SubnAdmGetMulti(QUESTION, self.path))
            self.assertTrue(found == PATHS)
            (request,) = served.asked
            self.assertEqual(request.data, QUESTION.record.encode() + QUESTION.more)
            asked = self.kernel.sent[before]
            header = RMPPHeader.decode(asked, 64 + 24)
            self.assertEqual((header.version, header.type, header.active), (1, RMPPType.DATA, True))
            if ours:
                self.assertEqual(len(asked), 64 + 56 + len(QUESTION.record.encode() + QUESTION.more))
            client.close()
            server.close()
