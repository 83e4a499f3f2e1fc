"""
Packets of the byte transfer layer around a loss, recorded from two modules, for L{sequences}.

The two hosts of L{txrdma.testing.btl.world} lose one packet: the third one that Alice sends.
"""

from __future__ import annotations

from random import Random
from typing import Any

from sequences import Step

from txrdma.btl.core.events import Event, MessageReceived, SendCompleted
from txrdma.btl.core.marks import NOT_ECT
from txrdma.btl.core.module import Module
from txrdma.btl.core.path import COMMAND
from txrdma.btl.wire import ACK, BTLSegment, decodeSegment, SegmentKind
from txrdma.testing.btl.world import BadNetwork, ModuleHost, World

_MESSAGES = 5
_BYTES = 900
_LOST = 3


class _Recorded(World):
    """A simulated network that records packets and loses one of them."""

    def __init__(self) -> None:
        super().__init__(Random(1), BadNetwork(delays=(0.0001, 0.0001)))
        self.steps: list[Step] = []
        self.first = 0
        self._count = 0

    def at(self) -> str:
        """The time in microseconds."""
        return f"{1e6 * self.now:.0f} us"

    def transmit(
        self, sender: ModuleHost, destination: Any, channel: int, packet: bytes, codepoint: int = NOT_ECT
    ) -> None:
        """Record a packet, and deliver or drop it."""
        self._count += 1
        isLost = self._count == _LOST
        segment = decodeSegment(packet)
        source, target = ("alice", "bob") if sender.number == 0 else ("bob", "alice")
        carrier = "command" if channel == COMMAND else "data"
        text = f"{self.at()}: {self._onPacket(segment)}"
        self.steps.append(Step("lost" if isLost else "message", source, target, carrier, text))
        if not isLost:
            super().transmit(sender, destination, channel, packet, codepoint)

    def _onPacket(self, segment: BTLSegment) -> str:
        if segment.kind == ACK:
            bitmap = int.from_bytes(segment.payload, "little")
            description = f"ACK up to {self._nameOf(segment.acknowledged or 0)}"
            beyond = [n for n in range(bitmap.bit_length()) if bitmap >> n & 1]
            numbers = ", ".join(str(self._nameOf(segment.acknowledged or 0) + 2 + n) for n in beyond)
            return description + (f", and {numbers}" if numbers else "")
        again = ", again" if segment.attempt > 1 else ""
        return f"{SegmentKind(segment.kind).name} {self._nameOf(segment.sequence)}{again}"

    def _nameOf(self, sequence: int) -> int:
        """The number of one of Alice's segments, from 1."""
        return (sequence - self.first + 1) & 0xFFFF


def loss() -> list[Step]:
    """Run the transfer with the loss until everything has arrived."""
    world = _Recorded()

    def handler(name: str) -> Any:
        def note(event: Event) -> None:
            if isinstance(event, MessageReceived):
                world.steps.append(Step("note", name, "", "", f"{world.at()}: message {event.tag}"))
            elif isinstance(event, SendCompleted):
                world.steps.append(Step("note", name, "", "", f"{world.at()}: {event.context} has arrived"))

        return note

    alice = ModuleHost(world, Module(1024, (63, 127), keepAlive=0.0), handler("alice"))
    bob = ModuleHost(world, Module(1024, (63, 127), keepAlive=0.0), handler("bob"))
    toBob, _toAlice = alice.meet(bob)
    world.first = toBob.sent.following
    for number in range(1, _MESSAGES + 1):
        alice.module.send(toBob, number, bytes(_BYTES), number)
    alice.turn()
    world.run(1.0)
    return world.steps
