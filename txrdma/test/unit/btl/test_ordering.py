"""
Order by tag: ordered tags deliver messages as they were sent, on any bad network; others immediately.
"""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from twisted.trial.unittest import SynchronousTestCase

from txrdma.btl.core.events import Event, MessageReceived
from txrdma.btl.core.module import Module
from txrdma.btl.core.ordering import Ordering
from txrdma.btl.core.receiving import ReceiveWindow
from txrdma.btl.wire import SEQUENCE_MASK
from txrdma.testing.btl.world import BadNetwork, ModuleHost, World

_IN_ORDER, _ANYHOW = 1, 2


class OrderingTests(SynchronousTestCase):
    """Messages of two tags, one of them ordered."""

    def play(self, seed: int, network: BadNetwork, count: int = 300) -> dict[int, list[int]]:
        """Send numbered messages with both tags; return those that arrived, by tag."""
        came: dict[int, list[int]] = {_IN_ORDER: [], _ANYHOW: []}

        def eventReceived(event: Event) -> None:
            if isinstance(event, MessageReceived):
                came[event.tag].append(int.from_bytes(bytes(event.data[:4]), "big"))

        random = Random(seed)
        world = World(random, network)
        alice = ModuleHost(world, Module(256, (63, 127)), lambda event: None)
        bob = ModuleHost(world, Module(256, (63, 127)), eventReceived)
        toBob, toAlice = alice.meet(bob)
        toAlice.order.tags.add(_IN_ORDER)
        for number in range(count):
            size = random.choice((4, 50, 230, 900, 3000))
            tag = (_ANYHOW, _IN_ORDER)[number % 2]
            alice.module.send(toBob, tag, number.to_bytes(4, "big") + bytes(size - 4))
        alice.turn()
        world.run(60.0, lambda: sum(map(len, came.values())) == count)
        self.assertEqual(toAlice.order.waiting, [])
        return came

    def test_order(self) -> None:
        """One tag arrives in order over a network that loses and reorders, the other does not."""
        network = BadNetwork(loss=0.05, duplication=0.05, delays=(0.0001, 0.001), jitter=0.002)
        came = self.play(3, network)
        self.assertEqual(came[_IN_ORDER], list(range(1, 300, 2)))
        self.assertEqual(sorted(came[_ANYHOW]), list(range(0, 300, 2)))
        self.assertNotEqual(came[_ANYHOW], sorted(came[_ANYHOW]))

    @given(
        first=st.integers(0, 10) | st.integers(SEQUENCE_MASK - 23, SEQUENCE_MASK),
        order=st.permutations(range(24)),
    )
    @settings(max_examples=200, deadline=None)
    def test_beginsAnew(self, first: int, order: list[int]) -> None:
        """Messages are delivered in order when sequence numbers wrap."""
        received, ordering, came = ReceiveWindow(first), Ordering(), []
        for number in order:
            sequence = (first + number) & SEQUENCE_MASK
            received.take(sequence, 1, 0.0)
            ordering.queue(sequence, number, b"")
            while (found := ordering.next(received)) is not None:
                came.append(found[0])
        self.assertEqual(came, list(range(24)))
