"""
When written bytes are sent: together if no peer is delayed, and at once if the peer would wait.
"""

from __future__ import annotations

from collections.abc import Sequence

from txrdma.error import InvalidRequest
from txrdma.iba.verbs import SendRequest
from txrdma.smc.group.groups import linkGroups
from txrdma.smc.group.sendscheduler import FLUSH_SECONDS
from txrdma.test.support.smc.races import Listener, RaceTestCase
from txrdma.testing.smc.scenario import DEVICE

CONNECTIONS = 4


class Working(Listener):
    """Simulates work on received data, and answers with several writes."""

    test: FlushingTests

    def dataReceived(self, data: bytes) -> None:
        super().dataReceived(data)
        self.test.now += self.test.work
        for byte in data:
            self.transport.write(bytes([byte]))
        self.test.events.append("handled")


class FlushingTests(RaceTestCase):
    """A server that receives messages of several connections at once."""

    def setUp(self) -> None:
        super().setUp()
        self.now = 100.0
        self.work = 0.0
        self.events: list[str] = []
        self.ends: list[tuple[Listener, Listener]] = []
        for _ in range(CONNECTIONS):
            there = Working()
            there.test = self
            here, _, _ = self.connect(there=there)
            self.ends.append((here, there))
            self.until(lambda: all(end.mode for pair in self.ends for end in pair))
        [link] = linkGroups(self.server, DEVICE).links()
        link.scheduler.clock = lambda: self.now
        self.link = link
        queuePair = link._queuePair
        post = queuePair.postSend

        def postSend(requests: Sequence[SendRequest]) -> None:
            self.events.append("posted")
            post(requests)

        self.patch(queuePair, "postSend", postSend)

    def question(self) -> None:
        """Send a message on each connection, to a server that cannot handle it yet."""
        for here, _ in self.ends:
            here.transport.write(b"question")
        self.wait(0.1)
        self.events.clear()

    def ask(self) -> None:
        """Send messages while the server's program is busy, and wait for the answers."""
        self.server.sleep()
        self.question()
        self.server.wake()
        self.until(lambda: all(here.received == b"question" for here, _ in self.ends))

    def test_quickAnswersToBatchAreSentTogether(self) -> None:
        self.ask()
        self.assertEqual(self.events, ["handled"] * CONNECTIONS + ["posted"])

    def test_slowAnswersAreSentOneByOneAsOneMessageEach(self) -> None:
        self.work = 5 * FLUSH_SECONDS
        self.ask()
        self.assertEqual(self.events, ["handled", "posted"] * CONNECTIONS)
        for here, _ in self.ends:
            self.assertEqual(here.transport.smc.messagesReceived, 1)

    def test_answersWithinFlushSecondsAreSentTogether(self) -> None:
        self.work = 0.6 * FLUSH_SECONDS
        self.ask()
        self.assertEqual(self.events, ["handled", "handled", "posted"] * (CONNECTIONS // 2))

    def answer(self) -> None:
        """Write an answer to each connection in one delayed call of the server's program."""

        def work() -> None:
            for _, there in self.ends:
                self.now += self.work
                there.transport.write(b"an")
                there.transport.write(b"swer")
                self.events.append("written")

        self.events.clear()
        self.server.callLater(0, work)
        self.until(lambda: all(here.received == b"answer" for here, _ in self.ends))

    def test_writesOfDelayedCallAreSentTogetherAtItsEnd(self) -> None:
        self.answer()
        self.assertEqual(self.events, ["written"] * CONNECTIONS + ["posted"])

    def test_slowWritesOfDelayedCallAreSentOneByOne(self) -> None:
        self.work = 5 * FLUSH_SECONDS
        self.answer()
        self.assertEqual(self.events, ["written", *["posted", "written"] * (CONNECTIONS - 1), "posted"])
        for here, _ in self.ends:
            self.assertEqual(here.transport.smc.messagesReceived, 1)

    def test_refusedSendEndsConnectionsOnlyAfterProgramsCall(self) -> None:
        self.work = 5 * FLUSH_SECONDS

        def postSend(requests: Sequence[SendRequest]) -> None:
            raise InvalidRequest("by the test")

        def work() -> None:
            for _, there in self.ends:
                self.now += self.work
                there.transport.write(b"answer")
                self.assertEqual(there.reason, None)
            reasons.extend(there.reason for _, there in self.ends)

        reasons: list[object] = []
        self.link._queuePair.postSend = postSend  # type: ignore[method-assign]  # for the test
        self.server.callLater(0, work)
        self.until(lambda: all(there.reason for _, there in self.ends))
        self.assertEqual(reasons, [None] * CONNECTIONS)

    def test_answersAfterPauseAreSentWhenComplete(self) -> None:
        self.work = 5 * FLUSH_SECONDS
        for _, there in self.ends:
            there.transport.pauseProducing()
        self.question()
        for _, there in self.ends:
            there.transport.resumeProducing()
        self.until(lambda: all(here.received == b"question" for here, _ in self.ends))
        self.assertEqual(self.events, ["handled", "posted"] * CONNECTIONS)

    def test_nothingIsPostedAfterLinkEndsWithinBatch(self) -> None:
        self.work = 5 * FLUSH_SECONDS
        self.server.sleep()
        self.question()
        broken = self.ends[1][1]

        def dataReceived(data: bytes) -> None:
            self.events.append("broken")
            self.link.broken("by the test")

        broken.dataReceived = dataReceived  # type: ignore[method-assign]  # for the test
        self.server.wake()
        self.until(lambda: all(there.reason for _, there in self.ends))
        self.assertIn("broken", self.events)
        self.assertNotIn("posted", self.events[self.events.index("broken") :])
