"""
RMPP transfers of requests and responses between agents, over a wire that loses, duplicates and reorders.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from txrdma.iba.path import IBPath
from txrdma.iba.types import GID, GUID, LID
from txrdma.mad.agent import MADAgent
from txrdma.mad.errors import MADTimeoutError, MADTransferError
from txrdma.mad.layouts.attributes import ManagementClass, Method
from txrdma.mad.layouts.messages import MADRequest, RMPPHeader, RMPPStatus, RMPPType
from txrdma.mad.layouts.sa import MultiPathRecord, PathRecord
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


class AgentCase(SynchronousTestCase):
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
        while not call.called and self.clock.seconds() < seconds:
            calls = self.clock.getDelayedCalls()
            self.clock.advance(max(0.0, min(each.getTime() for each in calls) - self.clock.seconds()))
        return self.successResultOf(call)

    def sentTypes(self, lid: int) -> list[tuple[int, int]]:
        headers = [RMPPHeader.decode(datagram, 24) for source, datagram in self.wire.sent if source == lid]
        return [(header.type, header.status) for header in headers if header.active]

    def quiet(self) -> None:
        pass_(self.clock, 60, 0.5)
        self.assertEqual(self.clock.getDelayedCalls(), [])
        for agent in (self.agent, self.other):
            self.assertEqual(
                (len(agent._core._transactions), agent._core._long._incoming, agent._core._long._outgoing),
                (0, {}, {}),
            )


class QuestionTests(AgentCase):
    @settings(max_examples=4, deadline=None)
    @given(
        wire=st.sampled_from([(0.0, 0.0, 0.0), (0.1, 0.0, 0.0), (0.05, 0.1, 0.003)]),
        seed=st.integers(0, 1 << 30),
    )
    def test_doubleSided(self, wire: tuple[float, float, float], seed: int) -> None:
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
        self.serve(lambda request: None)
        for lose in (lambda datagram: True, lambda datagram: False):
            self.wire.lose = lose
            call = self.agent.SubnAdmGetMulti(QUESTION, TO_2, retries=1)
            pass_(self.clock, 60, 0.05)
            self.failureResultOf(call, MADTimeoutError, MADTransferError)
        self.quiet()

    def test_cancelled(self) -> None:
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
    def test_doubleSided(self) -> None:
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
