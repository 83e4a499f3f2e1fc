"""
The lifecycle of a transport: a search through all short sequences of what its program and its peer can do.
"""

from __future__ import annotations

from collections import deque
from itertools import product
from types import SimpleNamespace
from typing import Any

from twisted.internet.error import ConnectionAborted, ConnectionDone, ConnectionLost
from twisted.internet.task import Clock
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from txrdma.btl.core.peer import OPEN
from txrdma.btl.transport import BTLMessageTransport
from txrdma.testing.protocols import MessageRecorder

MESSAGE_TAG = 0xFFFF
STEPS = 5
"""Length of the sequences, of which there are 16,807."""


class Lifeline:
    """What a transport needs of its L{PeerConnection<txrdma.btl.lifeline.PeerConnection>}."""

    def __init__(self) -> None:
        order = SimpleNamespace(tags=set(), isSettled=False)
        self.peer = SimpleNamespace(order=order, state=OPEN, queuedBytes=0)
        regions = SimpleNamespace(deregister=lambda region: None)
        self.module = SimpleNamespace(core=SimpleNamespace(regions=regions))
        self.host = self.peerHost = None
        self.waiting: deque[object] = deque()
        self.hasClosed = self.hasAborted = False

    def send(self, *words: object, **named: object) -> None:
        """Send nothing: the peer needs no reports."""

    sendFast: Any = send
    join: Any = send
    soon: Any = send

    def close(self) -> None:
        """Note that this end closes."""
        self.hasClosed = True

    def abort(self) -> None:
        """Note that this end aborts."""
        self.hasAborted = True


class Play:
    """
    One sequence of steps.

    @ivar arrived: messages that have arrived.
    @ivar mayLose: whether the program has given up messages that it had not taken.
    """

    def __init__(self) -> None:
        self.lifeline = Lifeline()
        self.protocol = MessageRecorder()
        lifeline: Any = self.lifeline
        self.transport = BTLMessageTransport(lifeline, self.protocol)
        self.transport.begin(Clock())
        self.arrived: list[bytes] = []
        self.isPaused = self.mayLose = False
        self.reason: type[Exception] | None = None

    def message(self) -> None:
        """A message arrives."""
        if self.reason is None and not self.lifeline.hasAborted:
            self.arrived.append(bytes((len(self.arrived),)))
            self.transport.deliverMessages([(MESSAGE_TAG, memoryview(self.arrived[-1]))])

    def pause(self) -> None:
        """The program pauses."""
        self.isPaused = True
        self.transport.pauseProducing()

    def resume(self) -> None:
        """The program resumes."""
        self.isPaused = False
        self.transport.resumeProducing()

    def close(self) -> None:
        """The program closes."""
        self.mayLose = self.mayLose or (self.reason is not None and self.isPaused)
        self.transport.loseConnection()

    def abort(self) -> None:
        """The program aborts."""
        self.mayLose = True
        self.transport.abortConnection()

    def peerCloses(self) -> None:
        """The connection ends in order, if this end has not aborted it."""
        self.end(ConnectionAborted if self.lifeline.hasAborted else ConnectionDone)

    def peerDies(self) -> None:
        """The connection is lost."""
        self.end(ConnectionAborted if self.lifeline.hasAborted else ConnectionLost)

    def end(self, reason: type[Exception]) -> None:
        """The lifeline reports the end, once."""
        if self.reason is None:
            self.reason = reason
            self.transport.ended(Failure(reason()))


class SearchTests(SynchronousTestCase):
    """What holds after every sequence."""

    def test_everySequence(self) -> None:
        """
        Messages are delivered in order, none to a paused protocol or after the end, and all before the end of
        a peer that has closed, unless the program gives them up.
        """
        program = (Play.pause, Play.resume, Play.close, Play.abort)
        moves = (*program, Play.message, Play.peerCloses, Play.peerDies)
        ends = set()
        for sequence in product(moves, repeat=STEPS):
            play = Play()
            protocol, story = play.protocol, [move.__name__ for move in sequence]
            for move in sequence:
                before, hasEnded = len(protocol.messages), bool(protocol.ends)
                move(play)
                if hasEnded or (play.isPaused and play.reason is not ConnectionLost):
                    self.assertEqual(len(protocol.messages), before, story)
                taken = [data for data, _ in protocol.messages]
                self.assertEqual(taken, play.arrived[: len(taken)], story)
                isOver = play.reason is not None and (not play.isPaused or play.reason is not ConnectionDone)
                if isOver or (play.reason is not None and play.mayLose) or taken == play.arrived:
                    self.assertEqual(len(protocol.ends), int(play.reason is not None), story)
                if protocol.ends and not play.mayLose:
                    assert play.reason is not None
                    self.assertEqual((taken, protocol.ends), (play.arrived, [play.reason.__name__]), story)
            ends.update(protocol.ends)
        self.assertEqual(ends, {"ConnectionDone", "ConnectionLost", "ConnectionAborted"})
