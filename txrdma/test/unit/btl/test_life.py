"""
The lifecycle of a connection: a search through all short sequences of steps of an application and its peer,
and one through the orders in which two ends close while any packet is lost.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import combinations_with_replacement, product
from types import SimpleNamespace
from typing import Any

from twisted.internet.error import ConnectionAborted, ConnectionDone, ConnectionLost
from twisted.internet.task import Clock
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from txrdma.btl import module as modules
from txrdma.btl import probes
from txrdma.btl.core.module import NONCE_LENGTH
from txrdma.btl.core.peer import OPEN
from txrdma.btl.ends import DeviceSpecs
from txrdma.btl.transport import BTLMessageTransport
from txrdma.btl.wire import decodeSegment, HEADER_LENGTH, VOID
from txrdma.soft.device import SoftDevice
from txrdma.test import EXAMPLES
from txrdma.test.support.btl.hosts import HostsCase, TagRecorder
from txrdma.test.support.compiled import skipIfCompiled
from txrdma.testing.protocols import MessageRecorder
from txrdma.testing.smc.hosts import Host

MESSAGE_TAG = 0xFFFF
STEPS = 5 if EXAMPLES >= 25 else 4
"""Length of the sequences."""

MESSAGES = [bytes(1500), b"last"]
"""The messages that both ends send before they close, in four packets or more."""

CLOSE_TIMES = (0.0, 15e-6, None)
"""When an end closes, in seconds: before its packets are delivered, meanwhile, or not at all."""

TCP_DELAYS: tuple[float, ...] = (1e-6, 1e-3)
"""Delays of TCP in seconds: shorter and longer than that of packets."""


def ignored(*words: object, **named: object) -> None:
    """Send nothing: the peer needs no reports."""


class Lifeline:
    """A stub of the transport's L{PeerConnection<txrdma.btl.lifeline.PeerConnection>}."""

    def __init__(self) -> None:
        order = SimpleNamespace(tags=set(), isOrdered=True)
        numbers = {"state": OPEN, "queuedBytes": 0, "sentBytes": 0, "receivedBytes": 0}
        self.peer = SimpleNamespace(order=order, usual=deque(), join=ignored, **numbers)
        core = SimpleNamespace(regions=SimpleNamespace(deregister=ignored), send=ignored)
        self.module = SimpleNamespace(core=core, sendFast=ignored, turnLater=ignored)
        self.host = self.peerHost = None
        self.hasClosed = self.hasAborted = False
        self.isClient, self.route = True, "rocev2"

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
        self.isPaused = self.hasClosed = self.mayLose = False
        self.reason: type[Exception] | None = None

    def message(self) -> None:
        if self.reason is None and not self.lifeline.hasAborted:
            self.arrived.append(bytes((len(self.arrived),)))
            self.transport.deliverMessages([(MESSAGE_TAG, memoryview(self.arrived[-1]))])

    def pause(self) -> None:
        self.isPaused = True
        self.transport.pauseProducing()

    def resume(self) -> None:
        self.isPaused = False
        self.transport.resumeProducing()

    def close(self) -> None:
        self.hasClosed = True
        self.transport.loseConnection()

    def abort(self) -> None:
        self.hasClosed = self.mayLose = True
        self.transport.abortConnection()

    def peerCloses(self) -> None:
        """The connection ends in order, if this end has not aborted it."""
        self.end(ConnectionAborted if self.lifeline.hasAborted else ConnectionDone)

    def peerDies(self) -> None:
        self.end(ConnectionAborted if self.lifeline.hasAborted else ConnectionLost)

    def end(self, reason: type[Exception]) -> None:
        """The lifeline reports the end, once."""
        if self.reason is None:
            self.reason = reason
            self.transport.ended(Failure(reason()))


class SearchTests(SynchronousTestCase):
    """Properties that hold after every sequence of steps."""

    slowBecause = "there are 7,327 sequences"

    def test_everySequence(self) -> None:
        """
        Messages are delivered in order, none to a paused protocol or after the end, and all before the end of
        a peer that has closed, unless the program gives them up. A paused protocol gets that end when it
        resumes or closes.
        """
        skipIfCompiled()
        program = (Play.pause, Play.resume, Play.close, Play.abort)
        moves = (*program, Play.message, Play.peerCloses, Play.peerDies)
        ends = set()
        for sequence in product(moves, repeat=STEPS):
            endsAt = next((at for at, move in enumerate(sequence) if move in moves[-2:]), STEPS)
            if not set(program).issuperset(sequence[endsAt + 1 :]):
                continue  # nothing arrives after the end
            play = Play()
            last = max((at for at, move in enumerate(sequence) if move is not moves[0]), default=0)
            protocol, story = play.protocol, [move.__name__ for move in sequence]
            isOver = False
            for at, move in enumerate(sequence):
                before, hasEnded = len(protocol.messages), bool(protocol.ends)
                move(play)
                waits = play.isPaused and play.reason is ConnectionDone
                play.mayLose = play.mayLose or (waits and play.hasClosed)
                isOver = isOver or (play.reason is not None and (not waits or play.hasClosed))
                if at < last:
                    continue  # a former sequence began with the same moves
                if hasEnded or (play.isPaused and play.reason is not ConnectionLost):
                    self.assertEqual(len(protocol.messages), before, story)
                taken = [data for data, _ in protocol.messages]
                self.assertEqual(taken, play.arrived[: len(taken)], story)
                self.assertEqual(len(protocol.ends), int(isOver), story)
                if protocol.ends and not play.mayLose:
                    assert play.reason is not None
                    self.assertEqual((taken, protocol.ends), (play.arrived, [play.reason.__name__]), story)
            ends.update(protocol.ends)
        self.assertEqual(ends, {"ConnectionDone", "ConnectionLost", "ConnectionAborted"})


class ClosingTests(HostsCase):
    """Two ends that send and close, with each packet lost once, and TCP faster or slower than packets."""

    delays = TCP_DELAYS
    allTimes = [*product(CLOSE_TIMES, repeat=2)]
    slowBecause = "two hosts are connected for each of 200 packets that is lost"

    def setUp(self) -> None:
        super().setUp()
        for name in ("COMMAND_DEPTHS", "DATA_DEPTHS"):
            self.patch(modules, name, (8, 8))  # thousands of receives take most of the time

    def play(self, times: Sequence[float | None], lost: int | None, delay: float) -> int:
        """
        Send messages in both directions, close, and check the ends; return the number of packets.

        @param times: when the ends close: see L{CLOSE_TIMES}.
        @param lost: number of the lost packet, counted from the first message; None: no packet is lost.
        @param delay: delay of TCP in seconds.
        """
        self.setUp()
        ends = self.connected(delay=delay)
        self.pause(0.1)
        packets: list[object] = []

        def isLost(packet: object) -> bool:
            packets.append(packet)
            return len(packets) - 1 == lost

        self.world.network.drop(isLost)
        for end, time in zip(ends, times, strict=True):
            for data in MESSAGES:
                end.transport.sendMessage(data)
            if time is not None:
                self.world.clock.callLater(time, end.transport.loseConnection)
        self.wait(lambda: all(end.ends for end in ends))
        story = f"{times}, lost {lost}, delay {delay}"
        for here, there, mayClose in zip(ends, reversed(ends), reversed(times), strict=True):
            received = [data for data, _ in there.messages]
            self.assertEqual(received, MESSAGES[: len(received)], story)
            if mayClose is None:  # else the peer may have refused messages, which ends in ConnectionLost
                self.assertEqual(here.why(), "ConnectionDone", story)
            if here.why() == "ConnectionDone":
                self.assertEqual(received, MESSAGES, story)
        self.world.close()
        return len(packets)

    def test_everyLoss(self) -> None:
        """All messages of an end that gets C{ConnectionDone} are delivered before its peer's end."""
        for times in self.allTimes:
            for delay in self.delays if times != (None, None) else ():
                for lost in range(self.play(times, None, delay)):
                    self.play(times, lost, delay)

    def test_lostProbe(self) -> None:
        """A probe that is lost while the connection closes does not turn its end into a loss."""
        client, server = self.connected(delay=1e-6)
        self.pause(0.1)
        self.world.network.drop(lambda packet: decodeSegment(packet.payload).kind == VOID)
        lifeline = server.transport._lifeline
        lifeline.module.core.probe(lifeline.peer, HEADER_LENGTH + NONCE_LENGTH, bytes(NONCE_LENGTH))
        lifeline.module.turnLater()
        client.transport.loseConnection()
        self.wait(lambda: client.ends and server.ends)
        self.assertEqual((client.why(), server.why()), ("ConnectionDone", "ConnectionDone"))


class ClosingByPathsTests(ClosingTests):
    """Like L{ClosingTests} by two paths, whose packets overtake each other; the client closes first."""

    delays = TCP_DELAYS[:1]
    allTimes = [*combinations_with_replacement(CLOSE_TIMES, 2)]

    def setUp(self) -> None:
        self.seconds: dict[str, SoftDevice] = {}
        self.patch(probes, "_prefixLength", lambda gid: 24)  # else from this host
        super().setUp()

    def host(self, address: str) -> Host:
        self.seconds[address] = second = self.world.network.device(address.replace("10.0.1", "10.0.2"))
        self.addCleanup(second.close)
        return super().host(address)

    def devices(self, host: Host) -> DeviceSpecs:
        return [host.device, self.seconds[host.address]]

    def connected(
        self, here: int = 0, there: int = 1, delay: float = 50e-6
    ) -> tuple[TagRecorder, TagRecorder]:
        ends = super().connected(here, there, delay)
        for end in ends:
            self.assertEqual(len(end.transport._lifeline.peer.sent.paths), 2)
        return ends
