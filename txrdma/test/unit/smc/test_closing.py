"""
Tests for L{txrdma.smc.flow.closing}: every row of the table, all events in all states, two ends.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Sequence
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from twisted.trial.unittest import SynchronousTestCase

from txrdma.smc.flow.closing import (
    diagram,
    Ended,
    Ending,
    Event,
    Lifecycle,
    ReadEnded,
    Released,
    Send,
    State,
)
from txrdma.smc.wire.cdc import StateFlags

DONE = int(StateFlags.DONE_WRITING)
CLOSED = int(StateFlags.CLOSED)
ABORT = int(StateFlags.ABNORMAL_CLOSE)

Step = Callable[[Lifecycle], None]

local: dict[str, Step] = {
    "doneWriting": Lifecycle.doneWriting,
    "close": Lifecycle.close,
    "abort": Lifecycle.abort,
    "fail": Lifecycle.fail,
    "groupDied": lambda closing: closing.groupDied(0),
    "delivered": Lifecycle.delivered,
    "stopped": Lifecycle.stopped,
    "expired": Lifecycle.expired,
    "drained": Lifecycle.drained,
    "peer done": lambda closing: closing.received(DONE, 0),
    "peer closed": lambda closing: closing.received(CLOSED, 0),
    "peer abort": lambda closing: closing.received(ABORT, 0),
    "peer lost": lambda closing: closing.peerLost(0),
}


def after(*steps: str) -> Lifecycle:
    """Return the state of an active connection after some steps."""
    closing = Lifecycle()
    closing.established()
    for step in steps:
        local[step](closing)
    closing.events()
    return closing


def flagsIn(events: Sequence[Event]) -> list[int]:
    """Return the flags of sent messages."""
    return [int(each.flags) for each in events if isinstance(each, Send)]


# from, steps that lead there, the event, to, and the flags of sent messages: facts, section 6.1, row by row
TABLE: tuple[tuple[State, tuple[str, ...], str, State, list[int]], ...] = (
    (State.ACTIVE, (), "doneWriting", State.PEERCLOSEWAIT1, [DONE]),
    (State.ACTIVE, (), "close", State.PEERCLOSEWAIT1, [CLOSED]),
    (State.ACTIVE, (), "abort", State.PEERABORTWAIT, [ABORT]),
    (State.APPCLOSEWAIT1, ("peer done",), "doneWriting", State.APPCLOSEWAIT2, [DONE]),
    (State.APPCLOSEWAIT1, ("peer closed",), "doneWriting", State.APPCLOSEWAIT2, [DONE]),
    (State.APPCLOSEWAIT1, ("peer done",), "close", State.PEERFINCLOSEWAIT, [CLOSED]),
    (State.APPCLOSEWAIT1, ("peer closed",), "close", State.CLOSED, [CLOSED]),
    (State.APPCLOSEWAIT1, ("peer done", "peer closed"), "close", State.CLOSED, [CLOSED]),
    (State.APPCLOSEWAIT2, ("peer done", "doneWriting"), "close", State.PEERFINCLOSEWAIT, [DONE | CLOSED]),
    (State.APPCLOSEWAIT2, ("peer closed", "doneWriting"), "close", State.CLOSED, [DONE | CLOSED]),
    (
        State.APPCLOSEWAIT2,
        ("peer done", "doneWriting", "peer closed"),
        "close",
        State.CLOSED,
        [DONE | CLOSED],
    ),
    (State.APPFINCLOSEWAIT, ("doneWriting", "peer closed"), "close", State.CLOSED, [DONE | CLOSED]),
    (State.PEERCLOSEWAIT1, ("doneWriting",), "close", State.PEERCLOSEWAIT1, [DONE | CLOSED]),
    (State.PEERCLOSEWAIT2, ("doneWriting", "peer done"), "close", State.PEERCLOSEWAIT2, [DONE | CLOSED]),
    (State.ACTIVE, (), "peer done", State.APPCLOSEWAIT1, []),
    (State.ACTIVE, (), "peer closed", State.APPCLOSEWAIT1, []),
    (State.PEERCLOSEWAIT1, ("doneWriting",), "peer done", State.PEERCLOSEWAIT2, []),
    (State.PEERCLOSEWAIT1, ("close",), "peer done", State.PEERCLOSEWAIT2, []),
    (State.PEERCLOSEWAIT1, ("close",), "peer closed", State.CLOSED, []),
    (State.PEERCLOSEWAIT1, ("doneWriting",), "peer closed", State.APPFINCLOSEWAIT, []),
    (State.PEERCLOSEWAIT1, ("doneWriting", "close"), "peer closed", State.CLOSED, []),
    (State.PEERCLOSEWAIT2, ("close", "peer done"), "peer closed", State.CLOSED, []),
    (State.PEERCLOSEWAIT2, ("doneWriting", "peer done"), "peer closed", State.APPFINCLOSEWAIT, []),
    (State.PEERCLOSEWAIT2, ("doneWriting", "peer done", "close"), "peer closed", State.CLOSED, []),
    (State.PEERFINCLOSEWAIT, ("peer done", "close"), "peer closed", State.CLOSED, []),
    # abnormal: PROCESSABORT is left immediately, because the application is notified immediately
    (State.ACTIVE, (), "peer abort", State.CLOSED, [ABORT]),
    (State.APPCLOSEWAIT1, ("peer done",), "peer abort", State.CLOSED, [ABORT]),
    (State.PEERCLOSEWAIT1, ("close",), "peer abort", State.CLOSED, []),
    (State.PEERCLOSEWAIT2, ("close", "peer done"), "peer abort", State.CLOSED, []),
    (State.PEERFINCLOSEWAIT, ("peer done", "close"), "peer abort", State.CLOSED, []),
    (State.PEERABORTWAIT, ("abort",), "peer abort", State.CLOSED, []),
    (State.PEERABORTWAIT, ("abort",), "peer closed", State.CLOSED, []),
    # additional to the table: an answer that spares the peer its wait
    (State.PEERCLOSEWAIT1, ("doneWriting",), "peer abort", State.CLOSED, [DONE | ABORT]),
    (State.PEERCLOSEWAIT2, ("doneWriting", "peer done"), "peer abort", State.CLOSED, [DONE | ABORT]),
    (State.APPCLOSEWAIT2, ("peer done", "doneWriting"), "peer abort", State.CLOSED, [DONE | ABORT]),
)


class TableTests(SynchronousTestCase):
    """The table of section 6.1."""

    def test_rows(self) -> None:
        for before, steps, event, then, sent in TABLE:
            closing = after(*steps)
            self.assertEqual(closing.state, before, steps)
            local[event](closing)
            self.assertEqual(closing.state, then, (steps, event))
            self.assertEqual(flagsIn(closing.events()), sent, (steps, event))

    def test_lostLinkEndsEveryState(self) -> None:
        for _, steps, _, _, _ in TABLE:
            if "peer closed" in steps:
                continue
            closing = after(*steps)
            wasOver = closing.isOver
            closing.groupDied(0)
            expected: list[Event] = [] if wasOver else [Ended(Ending.LOST)]
            self.assertEqual(closing.events(), [*expected, Released(True)], steps)
            self.assertEqual(closing.state, State.CLOSED)

    def test_linkLossAfterPeersClose(self) -> None:
        for steps in (("peer closed",), ("peer closed", "doneWriting"), ("doneWriting", "peer closed")):
            closing = after(*steps)
            closing.groupDied(0)
            self.assertEqual(closing.events(), [], steps)
            closing.close()
            ends = [each for each in closing.events() if not isinstance(each, Send)]
            self.assertEqual(ends, [Ended(Ending.DONE), Released(True)])

    def test_numbersShownByLinux(self) -> None:
        self.assertEqual([int(state) for state in State], [1, 2, 7, *range(20, 28)])


class NotificationTests(SynchronousTestCase):
    def test_endOfFileAfterAllBytes(self) -> None:
        closing = after()
        closing.received(DONE, 500)
        self.assertEqual(closing.events(), [])
        self.assertTrue(closing.readEnding)
        closing.drained()
        self.assertEqual(closing.events(), [ReadEnded()])
        closing.drained()
        self.assertEqual(closing.events(), [])

    def test_withdrawnFlagsStillCount(self) -> None:
        closing = after()
        closing.received(DONE, 0)
        closing.received(0, 0)
        closing.received(CLOSED, 0)
        self.assertEqual(closing.events(), [ReadEnded()])
        closing.close()
        self.assertIs(closing.state, State.CLOSED)

    def test_closeCompletesWhenPeerHasAll(self) -> None:
        closing = after()
        closing.close()
        self.assertEqual(closing.events(), [Send(StateFlags.CLOSED)])
        self.assertFalse(closing.isOver)
        closing.delivered()
        self.assertEqual(closing.events(), [Ended(Ending.DONE)])
        self.assertTrue(closing.isOver)
        closing.received(DONE | CLOSED, 77)
        self.assertFalse(closing.readEnding)
        self.assertEqual(closing.events(), [Released(True)])

    def test_abortFreesBufferAfterAnswer(self) -> None:
        closing = after()
        closing.abort()
        self.assertEqual(closing.events(), [Send(StateFlags.ABNORMAL_CLOSE), Ended(Ending.ABORTED)])
        closing.received(ABORT, 0)
        self.assertEqual(closing.events(), [Released(True)])

    def test_bytesPrecedePeersReset(self) -> None:
        closing = after()
        closing.received(ABORT, 100)
        self.assertEqual(closing.events(), [Send(StateFlags.ABNORMAL_CLOSE)])
        self.assertEqual(closing.state, State.PROCESSABORT)
        closing.drained()
        self.assertEqual(closing.events(), [Ended(Ending.RESET), Released(True)])

    def test_endOfFilePrecedesLoss(self) -> None:
        for what in ("groupDied", "peer abort"):
            closing = after()
            closing.received(DONE, 100)
            if what == "groupDied":
                closing.groupDied(100)
            else:
                closing.received(DONE | ABORT, 100)
            closing.events()
            closing.drained()
            self.assertEqual(closing.events(), [ReadEnded()])
            closing.drained()
            self.assertIsInstance(closing.events()[0], Ended)

    def test_stoppedApplicationIsNotifiedOfLoss(self) -> None:
        closing = after()
        closing.stopped()
        self.assertEqual(closing.events(), [Ended(Ending.LOST), Send(StateFlags.CLOSED)])

    def test_violationIsReportedAndBufferDistrusted(self) -> None:
        closing = after()
        closing.fail()
        self.assertEqual(closing.events(), [Send(StateFlags.ABNORMAL_CLOSE), Ended(Ending.BROKEN)])
        closing.expired()
        self.assertEqual(closing.events(), [Released(False)])

    def test_bufferOfLostPeerIsFreeAfterItsEnd(self) -> None:
        """A peer that seems lost may still write, until it closes or aborts, or the link ends."""
        for steps in ((), ("peer done",), ("doneWriting",), ("close",), ("abort",), ("close", "peer done")):
            for end in ("peer closed", "peer abort", "groupDied"):
                closing = after(*steps, "peer lost", "peer lost", "drained", "delivered")
                self.assertTrue(closing.isOver)
                self.assertIs(closing.state, State.PEERABORTWAIT)
                local[end](closing)
                self.assertEqual(closing.events(), [Released(True)], (steps, end))
            closing = after(*steps, "peer lost")
            closing.expired()
            self.assertEqual(closing.events(), [Released(False)], steps)

    def test_lostPeerThatHasEnded(self) -> None:
        """The end of a lost peer frees the buffer, also before the bytes are read, or before the loss."""
        for end in ("peer closed", "peer abort", "groupDied"):
            closing = after()
            closing.peerLost(100)
            local[end](closing)
            closing.drained()
            self.assertEqual(closing.events()[-1], Released(True), end)
        for end in ("peer closed", "peer abort"):
            closing = after(end)
            closing.peerLost(0)
            closing.close()
            self.assertIs(closing.state, State.CLOSED)

    def test_unresponsivePeerTimesOut(self) -> None:
        for steps in (("close",), ("peer done", "close"), ("doneWriting", "peer done", "close"), ("abort",)):
            closing = after(*steps, "delivered")
            closing.expired()
            self.assertEqual(closing.events(), [Released(False)], steps)
            self.assertEqual(closing.state, State.CLOSED)


class EarlyTests(SynchronousTestCase):
    """Messages that arrive before the end of the handshake."""

    def test_peerClosesBeforeStart(self) -> None:
        for flags in (DONE, CLOSED, DONE | CLOSED):
            closing = Lifecycle()
            self.assertEqual(closing.state, State.INIT)
            closing.received(flags, 3)
            closing.established()
            self.assertEqual((closing.state, closing.events()), (State.APPCLOSEWAIT1, []))
            closing.drained()
            self.assertEqual(closing.events(), [ReadEnded()])

    def test_peerAbortsBeforeStart(self) -> None:
        closing = Lifecycle()
        closing.received(ABORT, 0)
        closing.established()
        self.assertEqual(closing.state, State.CLOSED)


class AnyOrderTests(SynchronousTestCase):
    """Events of all kinds, in all states."""

    @settings(max_examples=500)
    @given(st.lists(st.sampled_from(sorted(local)), max_size=12))
    def test_everyEventIsAnsweredAndEndReportedOnce(self, steps: list[str]) -> None:
        closing = Lifecycle()
        closing.established()
        reported: list[Event] = []
        for step in steps:
            local[step](closing)
            reported += closing.events()
        ends = [place for place, event in enumerate(reported) if isinstance(event, Ended)]
        reads = [place for place, event in enumerate(reported) if isinstance(event, ReadEnded)]
        released = [place for place, event in enumerate(reported) if isinstance(event, Released)]
        self.assertLessEqual(len(ends), 1)
        self.assertLessEqual(len(reads), 1)
        self.assertTrue(not ends or not reads or reads < ends)
        self.assertEqual(released, [len(reported) - 1] if closing.state is State.CLOSED else [])
        self.assertEqual(closing.isOver, bool(ends))
        sent = flagsIn(reported)
        self.assertEqual(sent, sorted(set(sent)))  # flags are added, each only once

    @settings(max_examples=300)
    @given(st.integers(0, 1 << 32))
    def test_twoEndsAlwaysEnd(self, seed: int) -> None:
        random = Random(seed)
        ends = (Lifecycle(), Lifecycle())
        wires: tuple[deque[int], deque[int]] = (deque(), deque())
        reported: tuple[list[Event], list[Event]] = ([], [])

        def turn(who: int) -> None:
            events = ends[who].events()
            wires[who].extend(flagsIn(events))
            reported[who].extend(events)

        def deliver(who: int) -> None:
            if wires[who]:
                ends[1 - who].received(wires[who].popleft(), random.choice((0, 5)))
                turn(1 - who)

        for end in ends:
            end.established()
        for _ in range(random.randrange(12)):
            who = random.randrange(2)
            if random.random() < 0.5:
                deliver(who)
            else:
                step = random.choice(
                    (Lifecycle.doneWriting, Lifecycle.close, Lifecycle.abort, Lifecycle.drained)
                )
                step(ends[who])
                turn(who)
        for who in (0, 1, 0, 1):
            ends[who].drained()
            ends[who].close()
            turn(who)
            for each in (0, 1, 0, 1, 0, 1):
                deliver(each)
        for who in (0, 1):
            self.assertEqual(ends[who].state, State.CLOSED)
            self.assertEqual(reported[who][-1], Released(True))
            hows = [event.how for event in reported[who] if isinstance(event, Ended)]
            self.assertEqual(len(hows), 1)
            if hows[0] is Ending.RESET:
                self.assertIn(Ended(Ending.ABORTED), reported[1 - who])


class DiagramTests(SynchronousTestCase):
    def test_everyStateCanBeReachedAndLeft(self) -> None:
        text = diagram()
        edges = re.findall(r'^  "([^"]+)" -> "([^"]+)" \[label="([^"]+)"\];$', text, re.MULTILINE)
        nodes = re.findall(r'^  "([^"]+)";$', text, re.MULTILINE)
        names = {name for node in nodes for name in re.findall(r"\w+", node.partition("(")[2])}
        self.assertEqual(names - {"or"}, {state.name for state in State})
        reached = {nodes[0]}
        for _ in nodes:
            reached |= {there for here, there, _ in edges if here in reached}
        self.assertEqual(reached, set(nodes))
        self.assertEqual({here for here, _, _ in edges}, set(nodes) - {nodes[-1]})
        self.assertTrue(text.startswith("digraph") and text.endswith("}\n"))

    def test_edgeLabelIsEventAndActions(self) -> None:
        text = diagram()
        self.assertIn('"INIT, OPEN (INIT)" -> "OPEN, OPEN (ACTIVE)" [label="established"]', text)
        self.assertIn(
            '"OPEN, OPEN (ACTIVE)" -> "CLOSED, OPEN (PEERCLOSEWAIT1)" [label="close / sendClosed"]', text
        )
