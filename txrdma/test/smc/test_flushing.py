"""
When what was written goes out: together where that costs nobody time, and at once where the peer would wait.
"""

from __future__ import annotations

from collections.abc import Sequence

from txrdma.iba.verbs import SendRequest
from txrdma.smc.group.groups import linkGroups
from txrdma.smc.group.link import HOLD_SECONDS
from txrdma.test.smc.races import Listener, RaceTestCase
from txrdma.testing.smc.scenario import DEVICE

CONNECTIONS = 4


class Working(Listener):
    """Works for a while, and answers with several writes."""

    test: FlushingTests

    def dataReceived(self, data: bytes) -> None:
        super().dataReceived(data)
        self.test.now += self.test.work
        for byte in data:
            self.transport.write(bytes([byte]))
        self.test.events.append("handled")


class FlushingTests(RaceTestCase):
    """A server that gets messages of several connections at once."""

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
        link.clock = lambda: self.now
        self.link = link
        queuePair = link._queuePair
        post = queuePair.postSend

        def postSend(requests: Sequence[SendRequest]) -> None:
            self.events.append("posted")
            post(requests)

        self.patch(queuePair, "postSend", postSend)

    def ask(self) -> None:
        """Something for each connection, while the server's program is busy elsewhere."""
        self.server.sleep()
        for here, _ in self.ends:
            here.transport.write(b"question")
        self.wait(0.1)
        self.events.clear()
        self.server.wake()
        self.until(lambda: all(here.heard == b"question" for here, _ in self.ends))

    def test_together(self) -> None:
        """What is quickly done goes out at once, for all connections that had something in a batch."""
        self.ask()
        self.assertEqual(self.events, ["handled"] * CONNECTIONS + ["posted"])

    def test_longWork(self) -> None:
        """Where each answer takes long the peer does not wait for the last one; one's writes go together."""
        self.work = 5 * HOLD_SECONDS
        self.ask()
        self.assertEqual(self.events, ["handled", "posted"] * CONNECTIONS)
        for here, _ in self.ends:
            self.assertEqual(here.transport.smc.messagesReceived, 1)

    def test_someWork(self) -> None:
        """Where it takes a while some go together: as many as are done in the time that a flush is worth."""
        self.work = 0.6 * HOLD_SECONDS
        self.ask()
        self.assertEqual(self.events, ["handled", "handled", "posted"] * (CONNECTIONS // 2))

    def test_broken(self) -> None:
        """The link ends while a batch is handed on: nothing is posted after that."""
        self.work = 5 * HOLD_SECONDS
        self.server.sleep()
        for here, _ in self.ends:
            here.transport.write(b"question")
        self.wait(0.1)
        self.events.clear()
        broken = self.ends[1][1]

        def dataReceived(data: bytes) -> None:
            self.events.append("broken")
            self.link.broken("by the test")

        broken.dataReceived = dataReceived  # type: ignore[method-assign]  # for the test
        self.server.wake()
        self.until(lambda: all(there.reason for _, there in self.ends))
        self.assertIn("broken", self.events)
        self.assertNotIn("posted", self.events[self.events.index("broken") :])
