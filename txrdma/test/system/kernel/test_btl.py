"""
The byte transfer layer over the kernel's devices: modules of two datagram queue pairs on rxe, by pyverbs.

Two modules in one process, on C{rxe0} and C{rxe1}, or one on rxe and one on the software device far away.
Each message carries its number and bytes by a seed, so that every one of them is seen to arrive once, and as
it was sent. On a bad wire netem's own counters tell how much was lost, the modules' how much was sent again.
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from random import Random
from typing import Any

from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.endpoints import TCP4ClientEndpoint, TCP4ServerEndpoint
from twisted.internet.error import ConnectionDone
from twisted.logger import capturedLogs
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from txrdma.btl.connections import ClientEndpoint, ServerEndpoint
from txrdma.btl.errors import MessageFailed
from txrdma.btl.module import moduleOf
from txrdma.btl.stream.endpoints import StreamClientEndpoint, StreamServerEndpoint
from txrdma.test.support.btl.hosts import ORDERED, TAG, TagRecorder
from txrdma.test.system.kernel import Box, OUTSIDE, record, Witness
from txrdma.test.system.kernel.world import InTheBox, run, RXE, World, worldOf
from txrdma.testing.protocols import Echo, Recorders
from txrdma.verbs.devices import DeviceSpec

if OUTSIDE is None:
    from lab import network

BOXES = (Box(mtu=4200, timeout=700),)

SECONDS = 2.0
KiB = 1 << 10
COUNT = 400
MANY = 2400  # several of them go in one packet, and of these some must get lost
"""Messages of a test on a bad wire, of up to L{MOST} bytes."""

MOST = 12_000
DEVICES = ("pyverbs:rxe0", "pyverbs:rxe1")


class Pair(World):
    """The wire that the box has between rxe0 and rxe1: it is there already."""

    @staticmethod
    def _place(isFar: bool) -> tuple[tuple[str, ...], str]:
        return (), network.PAIRS[0][isFar].interface


def message(number: int) -> bytes:
    """A message with its number in front; the others of the same number have the same bytes."""
    random = Random(number)
    return number.to_bytes(4, "big") + random.randbytes(random.choice((0, 60, 700, 900, 3000, MOST)))


def digest(data: bytes | bytearray) -> str:
    """SHA-256 of bytes."""
    return hashlib.sha256(data).hexdigest()


def anew(logs: Sequence[dict[str, Any]]) -> int:
    """Number of times that a queue pair was said to begin anew."""
    return sum("begins anew" in (each.get("log_format") or "") for each in logs)


class Modules(InTheBox):
    """A client and a server, each with its own device."""

    def makeWorld(self) -> World:
        """The box's own wire."""
        return Pair()

    def makeDevices(self) -> tuple[DeviceSpec, DeviceSpec]:
        """Those of the kernel at both ends of that wire."""
        return DEVICES

    def setUp(self) -> None:
        super().setUp()
        self.reactor = self.makeReactor()
        self.devices = self.makeDevices()
        self.server = Recorders(TagRecorder)
        self.clients = Recorders(TagRecorder)
        stream = TCP4ServerEndpoint(self.reactor, 0, interface="127.0.0.1")
        self.port = self.result(ServerEndpoint(self.reactor, stream, self.devices[1]).listen(self.server))
        self.addCleanup(self._end)

    def _end(self) -> None:
        ends = self.clients.protocols + self.server.protocols
        for each in ends:
            each.transport.abortConnection()
        self.result(self.port.stopListening())
        self.runUntil(lambda: all(each.lost for each in ends), SECONDS)

    def result(self, deferred: Deferred[Any], seconds: float = SECONDS) -> Any:
        """What a Deferred fires with; what it fails with is raised."""
        results: list[Any] = []
        deferred.addBoth(results.append)
        self.runUntil(lambda: bool(results), seconds)
        if isinstance(results[0], Failure):
            results[0].raiseException()
        return results[0]

    def connected(self) -> tuple[TagRecorder, TagRecorder]:
        """A client and a server that are connected."""
        way = TCP4ClientEndpoint(self.reactor, "127.0.0.1", self.port.getHost().port)
        known = len(self.server.protocols)
        client = self.result(ClientEndpoint(self.reactor, way, self.devices[0]).connect(self.clients))
        self.runUntil(lambda: len(self.server.protocols) > known)
        server = self.server.protocols[-1]
        self.runUntil(lambda: server.isMade)
        return client, server

    def counted(self) -> Counter[str]:
        """The counters of both modules, while there is a connection."""
        one, other = (moduleOf(self.reactor, device) for device in self.devices)
        return one.counters + other.counters

    def assertOnce(self, received: list[tuple[int, bytes]], numbers: Iterable[int]) -> None:
        """Assert that each message has come once, with the bytes that it was sent with."""
        found = [(int.from_bytes(data[:4], "big"), digest(data)) for _tag, data in received]
        self.assertEqual(Counter(found), Counter((number, digest(message(number))) for number in numbers))


class KernelTests(Modules, SynchronousTestCase):
    """Modules on rxe at both ends of a wire."""

    skip = OUTSIDE
    witness = Witness("btl: over pyverbs", "btl: over pyverbs", "messages, put and get over UD queue pairs")

    def test_messages(self) -> None:
        """Messages of all sizes arrive once, in both directions; those of an ordered tag come in order."""
        client, server = self.connected()
        outcomes = []
        for number in range(100):
            for end in (client, server):
                outcomes += [end.transport.send(tag, message(number)) for tag in (TAG, ORDERED)]
        self.result(gatherResults(outcomes), 2 * SECONDS)
        for end in (client, server):
            for each in (TAG, ORDERED):
                self.assertOnce([one for one in end.tagged if one[0] == each], range(100))
            ordered = [int.from_bytes(data[:4], "big") for tag, data in end.tagged if tag == ORDERED]
            self.assertEqual(ordered, list(range(100)))
        self.assertEqual(self.counted()["num_unk_recvs"], 0)

    def test_long(self) -> None:
        """A message of 4 MiB has the hash that it was sent with."""
        client, server = self.connected()
        data = Random(1).randbytes(4096 * KiB)
        begun = time.monotonic()
        self.result(client.transport.send(TAG, data), 4 * SECONDS)
        record("MiB/s", round(4 / (time.monotonic() - begun), 2))
        [(_tag, received)] = server.tagged
        self.assertEqual(digest(received), digest(data))

    def test_memory(self) -> None:
        """What is put into memory of the peer is there, and what is read from it is the same."""
        client, server = self.connected()
        memory = bytearray(300 * KiB)
        region = server.transport.registerMemory(memory)
        data = Random(2).randbytes(256 * KiB)
        self.result(client.transport.put(region, 1000, data), 2 * SECONDS)
        wanted = bytearray(300 * KiB)
        wanted[1000 : 1000 + len(data)] = data
        self.assertEqual(digest(memory), digest(wanted))
        got = self.result(client.transport.get(region, 1000, len(data)), 2 * SECONDS)
        self.assertEqual(digest(got), digest(data))
        beyond = client.transport.put(region, len(memory) - 5, bytes(10))
        self.assertRaises(MessageFailed, self.result, beyond)

    def test_ends(self) -> None:
        """Ends in order bring all that was sent before them, and modules are opened anew behind them."""
        for _ in range(3):
            client, server = self.connected()
            for number in range(50):
                client.transport.send(TAG, message(number))
            client.transport.loseConnection()
            self.runUntil(lambda ends=(client, server): all(end.lost for end in ends), SECONDS)  # type: ignore[misc]  # of this round
            self.assertEqual((client.why(), server.why()), ("ConnectionDone", "ConnectionDone"))
            self.assertOnce(server.tagged, range(50))

    def test_aborts(self) -> None:
        """
        Connections that are aborted while they send do no harm to another one of the same modules.

        The wire takes 20 packets each 200 ms, and rxe stops at 64 that wait for it. The others wait in the
        send queue, where the address handle of each is looked up when its turn comes.
        """
        client, server = self.connected()
        victims = [self.connected()[0] for _ in range(6)]
        self.world.spoil(False, *"slot 200ms 200ms packets 20".split())
        self.addCleanup(self.world.mend)
        for victim in victims:
            for number in range(50):
                victim.transport.post(TAG, message(number))
        moduleOf(self.reactor, self.devices[0]).turn()
        with capturedLogs() as logs:
            for victim in victims:
                victim.transport.abortConnection()
            self.runUntil(lambda: all(victim.lost for victim in victims))
            outcomes = [client.transport.send(TAG, message(number)) for number in range(50)]
            self.result(gatherResults(outcomes), 2 * SECONDS)
        self.assertEqual(anew(logs), 0)
        self.assertOnce(server.tagged, range(50))
        self.assertEqual((client.lost, server.lost), ([], []))


class SoftwareTests(KernelTests):
    """A module on rxe, and one on the software device far away."""

    witness = Witness("btl: over the software device", "btl: over pyverbs", "messages, put and get over UD")

    def makeWorld(self) -> World:
        """The usual one, where rxe is near."""
        return worldOf(self.mtu)

    def makeDevices(self) -> tuple[DeviceSpec, DeviceSpec]:
        """rxe, and the software device."""
        soft = self.world.openSoft(self.reactor)
        self.addCleanup(soft.close)
        return f"pyverbs:{RXE}", soft


class BadWireTests(Modules, SynchronousTestCase):
    """Modules on rxe, and a wire that loses packets."""

    skip = OUTSIDE
    witness = Witness(
        "btl: over pyverbs", "btl: over pyverbs", "messages, a stream; netem: 1 % and 5 % lost; a cut"
    )

    def lossy(self, share: str) -> tuple[TagRecorder, TagRecorder]:
        """Connect, and have the wire lose packets of both directions."""
        ends = self.connected()
        for isFar in (False, True):
            self.world.spoil(isFar, "loss", share)
        self.addCleanup(self.world.mend)
        return ends

    def lost(self) -> int:
        """Packets that netem has dropped so far."""
        return sum(self.world.trouble(isFar).dropped for isFar in (False, True))

    def endure(self, share: str) -> None:
        """Send messages in both directions through that."""
        client, server = self.lossy(share)
        before, begun = self.counted(), time.monotonic()
        outcomes = [
            end.transport.send(TAG, message(number)) for number in range(MANY) for end in (client, server)
        ]
        self.result(gatherResults(outcomes), 4 * SECONDS)
        seconds, lost = time.monotonic() - begun, self.lost()
        self.runFor(1.0)  # what was sent twice arrives
        counted = self.counted()
        counted.subtract(before)
        for end in (client, server):
            self.assertOnce(end.tagged, range(MANY))
        again = counted["num_resends"]
        for name, value in (
            ("messages/s", round(2 * MANY / seconds)),
            ("packets", counted["num_total_sends"]),
            ("lost by netem", lost),
            ("sent again", again),
            ("of these without need", counted["num_spurious_resends"]),
            ("timed out", counted["num_timeout_retrans"]),
        ):
            record(name, value)
        self.assertGreater(lost, 5)
        self.assertGreater(again, 0)
        twice = counted["num_dup_recvs"] + counted["num_oow_low_recvs"]
        self.assertLessEqual(again, lost + twice, "what is sent again was lost, or comes twice")

    def test_loss1(self) -> None:
        """One packet of a hundred is lost: each message arrives once."""
        self.endure("1%")

    def test_loss5(self) -> None:
        """Five of a hundred are lost: each message arrives once."""
        self.endure("5%")

    def test_told(self) -> None:
        """The sender of a message hears that it has arrived, or that it has not, when the peer ends."""
        client, server = self.lossy("5%")
        arrived, failed = set[int](), set[int]()
        for number in range(COUNT):
            outcome = client.transport.send(TAG, message(number))
            outcome.addCallbacks(
                lambda _, number=number: arrived.add(number), lambda _, number=number: failed.add(number)
            )
        self.runUntil(lambda: len(server.tagged) > COUNT // 4)
        server.transport.abortConnection()
        self.runUntil(lambda: bool(client.lost and server.lost), SECONDS)
        received = {int.from_bytes(data[:4], "big") for _tag, data in server.tagged}
        self.assertOnce(server.tagged, received)
        self.assertEqual(arrived | failed, set(range(COUNT)))
        self.assertLessEqual(arrived, received)
        self.assertGreater(len(failed), 0)

    def test_linkDown(self) -> None:
        """A wire that is cut for a while loses nothing: the messages arrive when it is mended."""
        client, server = self.connected()
        outcomes = [client.transport.send(TAG, message(number)) for number in range(50)]
        self.world.setLink(False, False)
        self.addCleanup(self._mendLink)
        outcomes += [client.transport.send(TAG, message(number)) for number in range(50, 100)]
        with capturedLogs() as logs:
            self.runFor(1.0)
        self.assertGreater(anew(logs), 0)
        self._mendLink()
        self.result(gatherResults(outcomes), 2 * SECONDS)
        self.assertOnce(server.tagged, range(100))

    def _mendLink(self) -> None:
        self.world.setLink(False, True)
        run("bash", "-c", "; ".join(network.ways(0)))

    def test_stream(self) -> None:
        """A stream has all bytes, in order."""
        server = Recorders(Echo)
        stream = TCP4ServerEndpoint(self.reactor, 0, interface="127.0.0.1")
        port = self.result(StreamServerEndpoint(self.reactor, stream, DEVICES[1]).listen(server))
        self.addCleanup(lambda: self.result(port.stopListening()))
        way = TCP4ClientEndpoint(self.reactor, "127.0.0.1", port.getHost().port)
        client: Any = self.result(StreamClientEndpoint(self.reactor, way, DEVICES[0]).connect(Recorders()))
        for isFar in (False, True):
            self.world.spoil(isFar, "loss", "5%")
        self.addCleanup(self.world.mend)
        data = Random(3).randbytes(500 * KiB)
        client.transport.write(data)
        self.runUntil(lambda: len(client.received) >= len(data), SECONDS)
        self.assertEqual(digest(client.received), digest(data))
        client.transport.loseConnection()
        self.result(client.lost)
        self.assertIs(client.reason.type, ConnectionDone)
        self.assertGreater(self.lost(), 5)
