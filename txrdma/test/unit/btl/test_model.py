"""
Two modules as a state machine: each message is delivered once or reported as failed, with any faults of
packets.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule, RuleBasedStateMachine

from twisted.trial.unittest import SynchronousTestCase

from txrdma.btl.core.events import (
    Event,
    MessageReceived,
    PackReceived,
    PeerClosed,
    PeerFailed,
    SendCompleted,
    SendFailed,
)
from txrdma.btl.core.module import Module
from txrdma.btl.core.peer import OPEN, Peer
from txrdma.btl.core.receivebuffer import ReceiveBuffer
from txrdma.btl.wire import SEQUENCE_MASK
from txrdma.kit.wire import Buffer

_MTU = 80
_LANDING = 8192
_SIDES = st.integers(0, 1)
_SEQUENCES = st.integers(0, SEQUENCE_MASK) | st.integers(SEQUENCE_MASK - 20, SEQUENCE_MASK)


class TwoModules(RuleBasedStateMachine):
    """
    Two modules, and packets between them that are delivered in any order, several times or never.

    The model is what each application knows: messages that it has sent, reports, and received messages.
    """

    @initialize(first=_SEQUENCES, second=_SEQUENCES)
    def begin(self, first: int, second: int) -> None:
        """Make the modules peers of each other."""
        self.now = 0.0
        self.modules = [Module(_MTU, (40, 40), giveUp=5.0, keepAlive=0.0) for _side in (0, 1)]
        self.peers: list[Peer] = [
            self.modules[0].addPeer(11, 22, ((1, 0), (1, 1)), first, second, None, 0.0),
            self.modules[1].addPeer(22, 11, ((0, 0), (0, 1)), second, first, None, 0.0),
        ]
        for peer in self.peers:
            peer.order.isOrdered = False
        self.wire: list[tuple[int, int, bytes]] = []  # receiver, channel, packet
        self.sent: list[dict[int, bytes]] = [{}, {}]
        self.reported: list[dict[int, bool]] = [{}, {}]
        self.came: list[dict[int, bytes]] = [{}, {}]
        self.ended = [False, False]
        self.isReached = [True, True]
        self.writes: list[list[tuple[int, Buffer]]] = [[], []]

    @rule(side=_SIDES, isRemote=st.booleans())
    def share(self, side: int, isRemote: bool) -> None:
        """Give one side a receive buffer of the other one, if it has none; perhaps RDMA writes into it."""
        mine, other = self.peers[side], self.peers[1 - side]
        if OPEN == mine.state == other.state and other.localReceiveBuffer is None:
            other.localReceiveBuffer = memory = memoryview(bytearray(_LANDING))

            def write(position: int, data: Buffer) -> bool:
                if self.isReached[side]:
                    memory[position : position + len(data)] = data
                return self.isReached[side]

            def writeLater(position: int, data: Buffer) -> bool:
                self.writes[side].append((position, data))
                return True

            buffer = ReceiveBuffer(_LANDING, writeLater, 100) if isRemote else ReceiveBuffer(_LANDING, write)
            mine.receiveBuffer = buffer

    @rule(side=_SIDES)
    def completeWrites(self, side: int) -> None:
        """Complete what RDMA writes for one side, or fail if the receive buffer cannot be reached."""
        mine, memory = self.peers[side], self.peers[1 - side].localReceiveBuffer
        writes, self.writes[side] = self.writes[side], []
        if not writes or mine.receiveBuffer is None:
            return
        if self.isReached[side] and memory is not None:
            for position, data in writes:
                memory[position : position + len(data)] = data
            self.modules[side].written(mine, len(writes))
        else:
            self.modules[side].withdraw(mine)

    @rule(side=_SIDES)
    def reach(self, side: int) -> None:
        """Make the other side's receive buffer reachable or unreachable."""
        self.isReached[side] = not self.isReached[side]

    @rule(
        side=_SIDES,
        sizes=st.lists(st.sampled_from((0, 1, 5, 40, 58, 62, 63, 200, 300)), min_size=1, max_size=12),
        isUrgent=st.booleans(),
    )
    def send(self, side: int, sizes: list[int], isUrgent: bool) -> None:
        """Send messages in one reactor iteration; their tags are their numbers."""
        for size in sizes:
            if self.peers[side].state == OPEN:
                number = len(self.sent[side])
                self.sent[side][number] = bytes((number & 0xFF,)) * size
                self.hand(side, number, isUrgent)
        self.turn(side)

    def hand(self, side: int, number: int, isUrgent: bool) -> None:
        """Send a message, by the fast path if it is the only one."""
        module, peer, data = self.modules[side], self.peers[side], self.sent[side][number]
        packet = module.sendFast(peer, number, data)
        if packet is None:
            module.send(peer, number, data, number, isUrgent)
        else:
            channel, head, payload = packet
            module.sentFast(peer, channel, number, payload, number, self.now)
            self.wire.append((1 - side, channel, head + payload))
            module.completed(channel, 1)

    @rule(at=st.integers(0, 400), keeps=st.booleans())
    def deliver(self, at: int, keeps: bool) -> None:
        """Deliver a packet, and possibly store a duplicate."""
        if self.wire:
            at %= len(self.wire)
            side, channel, packet = self.wire[at] if keeps else self.wire.pop(at)
            module, source = self.modules[side], (1 - side, channel)
            event = module.receiveFast(channel, source, memoryview(packet), self.now)
            if event is None:
                module.received(channel, source, packet, self.now)
            else:
                self.eventReceived(side, event)
            module.batchEnded()
            self.turn(side)

    @rule(at=st.integers(0, 400))
    def drop(self, at: int) -> None:
        if self.wire:
            del self.wire[at % len(self.wire)]

    @rule(seconds=st.sampled_from((0.00003, 0.001, 0.02, 0.3, 1.5)))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        for side in (0, 1):
            self.modules[side].expired(self.now)
            self.turn(side)

    @rule(side=_SIDES)
    def close(self, side: int) -> None:
        self.modules[side].close(self.peers[side])
        self.turn(side)

    def turn(self, side: int) -> None:
        """Process the events and packets of a module."""
        module = self.modules[side]
        for event in module.events():
            self.eventReceived(side, event)
        for packet in module.outgoing(self.now):
            self.wire.append((1 - side, packet.channel, packet.head + bytes(packet.payload)))
            module.completed(packet.channel, 1)

    def eventReceived(self, side: int, event: Event) -> None:
        """Record an event of a module."""
        if isinstance(event, (MessageReceived, PackReceived)):
            messages = event.messages if isinstance(event, PackReceived) else [event[1:]]
            for tag, data in messages:
                assert tag not in self.came[side], f"message {tag} was delivered twice"
                self.came[side][tag] = bytes(data)
        elif isinstance(event, (SendCompleted, SendFailed)):
            assert isinstance(event.context, int)
            assert event.context not in self.reported[side], f"message {event.context} has two outcomes"
            self.reported[side][event.context] = isinstance(event, SendCompleted)
        else:
            assert isinstance(event, (PeerClosed, PeerFailed))
            assert not self.ended[side], "two ends"
            self.ended[side] = True

    @invariant()
    def truth(self) -> None:
        """Received messages equal sent ones, and messages reported as delivered were received."""
        for side in (0, 1):
            other = 1 - side
            for number, data in self.came[other].items():
                assert self.sent[side][number] == data, f"message {number} has changed"
            for number, hasArrived in self.reported[side].items():
                assert not hasArrived or number in self.came[other], f"message {number} was not delivered"
            assert not self.ended[side] or self.reported[side].keys() == self.sent[side].keys(), (
                "an end before the outcomes of messages"
            )

    def teardown(self) -> None:
        """Deliver packets until the outcome of every message has been reported."""
        if not hasattr(self, "wire"):
            return
        for _round in range(300):
            wire, self.wire = self.wire, []
            for side, channel, packet in wire:
                self.modules[side].received(channel, (1 - side, channel), packet, self.now)
            for side in (0, 1):
                self.completeWrites(side)
                self.modules[side].batchEnded()
                self.modules[side].expired(self.now)
                self.turn(side)
            self.truth()
            self.now += 0.05
        for side in (0, 1):
            assert self.reported[side].keys() == self.sent[side].keys(), "messages without an outcome"
            hasFailed = not all(self.reported[side].values())
            assert not hasFailed or self.ended[side], "a message has failed, although its peer is connected"


class ModelTests(SynchronousTestCase):
    """Hypothesis searches for steps that violate the invariants."""

    slowBecause = "Hypothesis runs many examples"

    def test_twoModules(self) -> None:
        """No order of packets, losses, times and calls violates the invariants."""
        machine = TwoModules.TestCase
        machine.settings = settings(max_examples=40, stateful_step_count=50, deadline=None)
        machine("runTest").debug()
