"""
Clients that nobody knows: what they can make a listener send, keep, or wait for.
"""

from __future__ import annotations

from random import Random
from typing import Any

from twisted.internet.testing import AccumulatingProtocol

from txrdma.btl.connections import Opening
from txrdma.btl.introductions import frame, FrameKind, Introduction, MAGIC, VERSION
from txrdma.btl.lifeline import PROBE_SECONDS
from txrdma.btl.wire import ACK, encodeHead, FRAG
from txrdma.test.support.btl.hosts import HostsCase, TAG, TagRecorder
from txrdma.testing.protocols import Recorders
from txrdma.testing.smc.hosts import connectedSockets, MemoryTCP


class Pushing(TagRecorder):
    """A server that sends much as soon as it is connected."""

    def connectionMade(self) -> None:
        super().connectionMade()
        for _each in range(100):
            self.transport.sendMessage(bytes(10_000))


class AddressTests(HostsCase):
    """A client that names the address of somebody else gets nothing sent there but a few small packets."""

    def setUp(self) -> None:
        super().setUp()
        self.victim = self.host("10.0.1.3")
        self.packets: list[int] = []  # lengths on the wire, of those to the victim
        carry = self.world.network.carry

        def note(data: Any, segment: int, source: Any, destination: Any) -> Any:
            if destination[0] == "10.0.1.3":
                self.packets += [len(data[at : at + segment]) + 28 for at in range(0, len(data), segment)]
            return carry(data, segment, source, destination)

        self.patch(self.world.network, "carry", note)

    def begin(self) -> tuple[MemoryTCP, Introduction, Opening]:
        """Introduce the victim to a server that pushes; the answer has the server's introduction."""
        ends = connectedSockets(self.world, Random(2), self.hosts[0], self.hosts[1], 40001, 50e-6)
        opening = Opening(self.hosts[1], self.hosts[1].device, Recorders(Pushing), False)
        opening.answer.addErrback(lambda failure: None)
        MemoryTCP(ends[1], opening.lifeline).begin()
        attacker = MemoryTCP(ends[0], heard := AccumulatingProtocol())
        attacker.begin()
        introduction = Introduction(
            magic=MAGIC, version=VERSION, commandQPN=2, dataQPN=3, mtu=1024, name=77, sequence=0,
            gid=self.victim.device.gids(1)[0],
        )  # fmt: skip
        self.said = introduction.encode()
        attacker.write(self.said)
        self.wait(lambda: len(heard.data) >= len(self.said))
        return attacker, Introduction.decode(heard.data), opening

    def acknowledge(self, attacker: MemoryTCP, its: Introduction, count: int) -> None:
        """Acknowledge so many segments in farewells."""
        for number in range(count):
            sequence = (its.sequence + number) & 0xFFFF
            content = encodeHead(ACK, its.name, 0, sequence, 0, 0)
            attacker.write(frame(FrameKind.FAREWELL, content))

    def test_farewells(self) -> None:
        """Acknowledgements in farewells prove nothing, and neither do messages in them."""
        attacker, its, opening = self.begin()
        self.acknowledge(attacker, its, 50)
        message = encodeHead(FRAG, its.name, 0, None, TAG, 0)
        attacker.write(frame(FrameKind.FAREWELL, message) + frame(FrameKind.READY))
        self.pause(PROBE_SECONDS + 1.0)
        self.assertLessEqual(sum(self.packets), 3 * (120 + len(self.said)))
        self.assertGreater(len(self.packets), 0)
        self.assertLess(max(self.packets), 150)
        self.assertIs(opening.lifeline.user, None)

    def test_wrongNonce(self) -> None:
        """A nonce that is none of the probe's proves nothing."""
        attacker, its, opening = self.begin()
        for nonce in (b"", bytes(8), bytes(9), b"\xff" * 8):
            attacker.write(frame(FrameKind.ECHO, nonce))
        self.acknowledge(attacker, its, 50)
        self.pause(PROBE_SECONDS + 1.0)
        self.assertLessEqual(sum(self.packets), 3 * (120 + len(self.said)))
        self.assertIs(opening.lifeline.user, None)
