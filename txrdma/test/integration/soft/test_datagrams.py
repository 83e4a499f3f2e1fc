"""
Datagrams between devices of one host: L{txrdma.soft.shared.datagramlane},
L{txrdma.soft.shared.datagrams} and L{txrdma.soft.rc.localpeers}.
"""

from __future__ import annotations

import errno
import mmap
import os
from array import array
from collections.abc import Sequence
from ctypes import c_uint32
from dataclasses import replace
from functools import partial
from struct import Struct
from typing import Any, cast, NoReturn

from twisted.trial.unittest import SkipTest

from txrdma.error import ResourceExhausted
from txrdma.iba.types import MTU, QPN
from txrdma.iba.verbs import (
    Buffer,
    Completion,
    CompletionOpcode,
    Operation,
    QPKind,
    QPState,
    SendRequest,
    Status,
)
from txrdma.soft.core.queuepair import SoftQueuePair
from txrdma.soft.device import openSoftDevice, SoftDevice
from txrdma.soft.rc import _datagram
from txrdma.soft.rc.localpeers import SEEK_SECONDS
from txrdma.soft.rc.roce import RoCEPort
from txrdma.soft.rc.udp import UDPCarrier
from txrdma.soft.shared import datagrams
from txrdma.soft.shared._rendezvous import mapBox, RendezvousKind
from txrdma.soft.shared.datagramlane import DatagramLane
from txrdma.soft.shared.sharedmemoryport import SharedMemoryPort
from txrdma.soft.shared.unixpackets import PacketSocket
from txrdma.test.support.soft.neighbours import Added, RealCase
from txrdma.test.support.soft.pairs import End, QKEY
from txrdma.verbs.completions import CompletionReader, ReaderReactor

HEADS = Struct(">QIII")


class DatagramEnd(End):
    """An end of datagrams with some receives."""

    RECEIVES = 200
    STRIDE = 512

    def __init__(self, device: SoftDevice) -> None:
        super().__init__(device, QPKind.UD)
        self.open()
        for number in range(self.RECEIVES):
            self.receive(number, number * self.STRIDE, self.STRIDE)
        self.completions: list[Completion] = []

    def sendText(
        self, peer: DatagramEnd, text: bytes, operation: Operation = Operation.SEND, **more: Any
    ) -> None:
        at = self.RECEIVES * self.STRIDE
        self.region.view[at : at + len(text)] = text
        where = {**self.to(peer), "signaled": False, **more}
        self.post(1000, operation, [self.segment(at, len(text))], **where)

    def pollQueue(self) -> None:
        self.completions += self.queue.poll(64)

    def content(self, completion: Completion) -> bytes:
        """Return the payload of a completion."""
        start = completion.identifier * self.STRIDE
        return bytes(self.region.view[start + 40 : start + completion.length])

    def header(self, completion: Completion) -> bytes:
        """Return the 40 bytes before the payload."""
        start = completion.identifier * self.STRIDE
        return bytes(self.region.view[start : start + 40])

    @property
    def received(self) -> list[bytes]:
        """Return the payloads of all received datagrams."""
        return [self.content(each) for each in self.completions if each.opcode is CompletionOpcode.RECEIVE]


def portOf(end: End) -> RoCEPort:
    """Return the RoCE port of an end's device."""
    route = end.device.routes[-1]
    return cast(RoCEPort, getattr(route, "_port", route))


def lanesOf(end: End) -> list[DatagramLane]:
    """Return the lanes of an end's device."""
    shared = cast(SharedMemoryPort, end.device.routes[0])
    return [each.lane for each in shared.datagrams._datagramLinks]


class DatagramCase(RealCase):
    """Two devices, in this process."""

    route = "auto"

    def both(self, **more: Any) -> tuple[DatagramEnd, DatagramEnd]:
        """Return two ends with an active lane between them."""
        one, other = DatagramEnd(self.open(**more)), DatagramEnd(self.open(**more))
        self.meet(one, other)
        return one, other

    def meet(self, one: DatagramEnd, other: DatagramEnd) -> None:
        """Establish a lane between two ends."""
        one.sendText(other, b"first")
        self.runUntil(
            lambda: all(lane.isUp for end in (one, other) for lane in lanesOf(end)) and lanesOf(one)
        )
        self.isAccepted(other, [b"first"])

    def isAccepted(self, end: DatagramEnd, texts: Sequence[bytes]) -> None:
        """Return whether exactly these arrive, in this order."""

        def enough() -> bool:
            end.pollQueue()
            return len(end.received) >= len(texts)

        self.runUntil(enough)
        self.assertEqual(end.received, list(texts))
        end.completions.clear()

    def packetsByUDP(self, end: End) -> int:
        """Return the number of packets sent by a device's socket."""
        return self.sent[end.device.port]

    def watchSocket(self, end: End) -> None:
        """Count the packets of a device's socket."""
        carrier, port = portOf(end)._carrier, end.device.port
        self.sent[port] = 0
        send = carrier.send

        def counted(data: memoryview, segment: int, destination: Any, trafficClass: int) -> bool:
            self.sent[port] += -(-len(data) // segment)
            return send(data, segment, destination, trafficClass)

        self.patch(carrier, "send", counted)

    def setUp(self) -> None:
        super().setUp()
        self.sent: dict[int, int] = {}


class SharedDatagramTests(DatagramCase):
    """Datagrams by shared memory, between devices of one process."""

    def test_requestWithFieldOfWrongTypeRaises(self) -> None:
        """The requests before it are sent and completed; the entry of the wrong one is free again."""
        one, other = self.both()
        queuePair = cast(SoftQueuePair, one.qp)
        wrong: Any = None
        for operation in (Operation.SEND, Operation.SEND_WITH_IMMEDIATE):
            good = SendRequest(1, Operation.SEND, inline=[b"good"], **one.to(other))
            bad = replace(good, operation=operation, remoteQKey=wrong)
            self.assertRaises(TypeError, queuePair.postSend, [good, good, bad])
            self.assertEqual(queuePair.free, queuePair.capacity.maxSend)
            self.assertEqual([each.status for each in one.poll()], [Status.SUCCESS] * 2)
            self.isAccepted(other, [b"good"] * 2)

    def test_inlineObjectWithoutLengthIsSent(self) -> None:
        """Numbers of L{ctypes} are bytes-like objects, but have no length."""
        one, other = self.both()
        number: Any = c_uint32(0x01010101)
        for inline in ([number], [b"head", number]):
            requests = [
                SendRequest(1, Operation.SEND, inline=each, **one.to(other)) for each in ([b"good"], inline)
            ]
            one.qp.postSend(requests)
            self.isAccepted(other, [b"good", b"".join(inline)])

    def test_firstDatagramUsesUDPAndLaterOnesMemory(self) -> None:
        one, other = DatagramEnd(self.open()), DatagramEnd(self.open())
        self.watchSocket(one)
        self.meet(one, other)
        self.assertEqual(self.packetsByUDP(one), 1)
        texts = [b"%d" % number * 20 for number in range(100)]
        for text in texts:
            one.sendText(other, text)
        self.isAccepted(other, texts)
        self.assertEqual(self.packetsByUDP(one), 1)

    def test_otherEndUsesSameLane(self) -> None:
        one, other = self.both()
        self.watchSocket(other)
        other.sendText(one, b"answer")
        self.isAccepted(one, [b"answer"])
        self.assertEqual(self.packetsByUDP(other), 0)

    def test_completionHeaderAndCountersEqualThoseOverUDP(self) -> None:
        reported = []
        for route in ("auto", "rocev2"):
            one, other = DatagramEnd(self.open(route)), DatagramEnd(self.open(route))
            if route == "auto":
                self.meet(one, other)
            else:
                one.sendText(other, b"first")
                self.isAccepted(other, [b"first"])
            before = vars(portOf(other).counters).copy(), vars(portOf(one).counters).copy()
            found = []
            sorts: list[tuple[int, Operation, dict[str, Any]]] = [
                (0, Operation.SEND, {}),
                (1, Operation.SEND, {}),
                (4, Operation.SEND, {"solicited": True}),
                (7, Operation.SEND, {"remoteQKey": 0x80000001}),
                (300, Operation.SEND_WITH_IMMEDIATE, {"immediate": 77}),
            ]
            for length, operation, more in sorts:
                text = bytes(range(length % 251)) * (length // 251 + 1)
                one.sendText(other, text[:length], operation, **more)
                (completion,) = self.take(other, 1)
                self.assertEqual(completion.sourceQPN, one.qp.number)
                header = other.header(completion)
                found.append(
                    (
                        completion.length,
                        completion.immediate,
                        completion.hasGRH,
                        bytes(header),
                        other.content(completion),
                    )
                )
            counted = []
            for counters, was in zip((portOf(other).counters, portOf(one).counters), before, strict=True):
                now = vars(counters)
                counted.append(
                    {name: now[name] - was[name] for name in now if name not in ("reads", "writes")}
                )
            reported.append((found, counted))
        self.assertEqual(*reported)

    def test_signaledSendsCompleteAndFreeEntries(self) -> None:
        one, other = self.both()
        for number in range(1000):
            one.sendText(other, b"x", signaled=number % 100 == 99)
            other.pollQueue()
            while other.completions:
                identifier = other.completions.pop().identifier
                other.receive(identifier, identifier * other.STRIDE, other.STRIDE)
        one.pollQueue()
        self.assertEqual([each.opcode for each in one.completions], [CompletionOpcode.SEND] * 10)
        self.assertEqual({each.status for each in one.completions}, {Status.SUCCESS})

    def test_invalidSendsFailInOrderAsOverUDP(self) -> None:
        one, other = self.both()
        one.sendText(other, b"good")
        one.post(7, Operation.SEND, [one.segment(0, 1 << 21)], **one.to(other))
        one.pollQueue()
        self.assertEqual(
            [(each.identifier, each.status) for each in one.completions], [(7, Status.LOC_PROT_ERR)]
        )
        self.isAccepted(other, [b"good"])

    def test_datagramLongerThanMTUFails(self) -> None:
        one, other = self.both(mtu=MTU.MTU_256)
        one.sendText(other, bytes(257), signaled=True)
        one.pollQueue()
        self.assertEqual([each.status for each in one.completions], [Status.LOC_LEN_ERR])

    def test_inlineDataMayHaveItemsOfSeveralBytes(self) -> None:
        one, other = self.both()
        words = memoryview(array("I", range(5)))
        batches: list[list[Buffer]] = [[words], [b"head", words], [words.cast("B").cast("B", (4, 5))]]
        for number, inline in enumerate(batches):
            one.post(number, Operation.SEND, inline=inline, **one.to(other))
        self.isAccepted(other, [b"".join(each) for each in batches])
        one.pollQueue()
        self.assertEqual([each.status for each in one.completions], [Status.SUCCESS] * len(batches))

    def test_solicitedIsATruthValue(self) -> None:
        """A flag of libibverbs in C{solicited} does not change the opcode of a datagram."""
        if not (_datagram.__file__ or "").endswith(".py"):
            raise SkipTest("compiled functions check types")
        one, other = self.both()
        operations = (Operation.SEND, Operation.SEND_WITH_IMMEDIATE)
        for number, operation in enumerate(operations):
            one.post(number, operation, inline=[b"text"], solicited=4, **one.to(other))
        self.isAccepted(other, [b"text"] * len(operations))

    def test_datagramsWithoutReceiverAreLost(self) -> None:
        one, other = self.both()
        strays = portOf(other).counters.strays
        one.sendText(other, b"wrong", remoteQKey=QKEY + 1)
        one.sendText(other, b"nobody", remoteQPN=QPN(2))
        for _ in range(DatagramEnd.RECEIVES + 10):
            one.sendText(other, b"many")
        self.isAccepted(other, [b"many"] * (DatagramEnd.RECEIVES - 1))
        self.assertEqual(portOf(other).counters.strays, strays + 1)
        other.receive(0, 0, other.STRIDE)
        one.sendText(other, b"again")
        self.isAccepted(other, [b"again"])

    def test_datagramsBeyondFullRingAreLost(self) -> None:
        self.patch(datagrams, "RING_BYTES", 1 << 14)
        one, other = self.both()
        texts = [b"%03d" % number for number in range(DatagramEnd.RECEIVES - 1)]
        self.watchSocket(one)
        for text in texts:
            one.sendText(other, text * 60)
        (lane,) = lanesOf(one)
        self.assertGreater(lane.lost, 0)
        self.isAccepted(other, [text * 60 for text in texts[: len(texts) - lane.lost]])
        self.assertEqual(self.packetsByUDP(one), 0)
        one.sendText(other, b"room")
        self.isAccepted(other, [b"room"])

    def test_datagramsByUDPPrecedeLaterOnesByMemory(self) -> None:
        one, other = DatagramEnd(self.open()), DatagramEnd(self.open())
        for text in (b"one", b"two", b"three"):
            one.sendText(other, text)
        shared = cast(SharedMemoryPort, other.device.routes[0])
        carrier = cast(UDPCarrier, portOf(other)._carrier)
        carrier.setReading(False)
        self.runUntil(lambda: shared.datagrams.isOpen and all(lane.isUp for lane in lanesOf(one)))
        one.sendText(other, b"four")
        self.isAccepted(other, [b"one", b"two", b"three", b"four"])
        carrier.setReading(True)

    def test_errorOfOneQueuePairsDatagramFailsOnlyIt(self) -> None:
        one, other = self.both()
        beside = DatagramEnd(other.device)

        def take(*args: object) -> None:
            raise RuntimeError("a bug")

        self.patch(cast(Any, beside.qp)._route, "take", take)
        one.sendText(beside, b"fails")
        one.sendText(other, b"goes on")
        self.isAccepted(other, [b"goes on"])
        self.assertIs(beside.qp.state, QPState.ERR)
        self.assertEqual(len(self.flushLoggedErrors(RuntimeError)), 1)

    def test_deviceSendsToItselfByItsLane(self) -> None:
        one = DatagramEnd(self.open())
        self.meet(one, one)
        self.watchSocket(one)
        one.sendText(one, b"soliloquy")
        self.isAccepted(one, [b"soliloquy"])
        self.assertEqual(self.packetsByUDP(one), 0)

    def test_sleepingReceiverIsWokenEachTimeAndRungIfNecessary(self) -> None:
        one, other = self.both()
        found: list[Completion] = []
        reactor = cast(ReaderReactor, self.reactor)
        reader = CompletionReader(reactor, other.channel, [other.queue], found.extend, busyPolls=False)
        reader.start()
        self.addCleanup(reader.stop)
        for number in range(1, 30):
            one.sendText(other, b"wake up")
            self.runUntil(partial(self.isLong, found, number))
            for _ in range(number % 4):
                self.reactor.iterate(0.003)

    def isLong(self, found: list[Completion], number: int) -> bool:
        """Return whether there are that many."""
        return len(found) == number

    def test_sleepingReceiverIsWokenBesidePolledQueuePair(self) -> None:
        one, other = self.both()
        sleeper = DatagramEnd(other.device)
        sleeper.queue.arm()
        one.sendText(other, b"looked at")
        self.isAccepted(other, [b"looked at"])
        one.sendText(sleeper, b"woken")
        self.runUntil(sleeper.channel.takeEvents)
        self.isAccepted(sleeper, [b"woken"])

    def test_portThatIsDownNeitherSendsNorReceives(self) -> None:
        one, other = self.both()
        for down in (one, other):
            down.device.setPortEnabled(1, False)
            one.sendText(other, b"lost")
            self.reactor.iterate(0.01)
            other.pollQueue()
            down.device.setPortEnabled(1, True)
            self.reactor.iterate(0.01)
        one.sendText(other, b"up")
        self.isAccepted(other, [b"up"])

    def test_ringsThatCannotBeMappedAreReplacedByUDP(self) -> None:
        def full(_descriptor: int) -> NoReturn:
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

        self.patch(datagrams, "mapBox", full)
        one, other = DatagramEnd(self.open()), DatagramEnd(self.open())
        connected = End(one.device), End(other.device)
        connected[0].join(connected[1])
        connected[1].join(connected[0])
        for _ in range(3):
            one.sendText(other, b"by UDP")
            self.isAccepted(other, [b"by UDP"])
        self.runUntil(lambda: not lanesOf(one))
        self.assertEqual([each.qp.state for each in connected], [QPState.RTS] * 2)

    def checkUnsentRings(self, sent: int) -> None:
        """Check that datagrams use UDP, and nothing is left, if only so many rings can be sent."""
        send, tries, added = PacketSocket.send, 0, Added()

        def scarce(line: PacketSocket, message: bytes, descriptors: Sequence[int] = ()) -> None:
            nonlocal tries
            if message[0] == RendezvousKind.DATAGRAM_RING and descriptors:
                tries += 1
                if tries > sent:
                    raise ResourceExhausted("no descriptor")
            send(line, message, descriptors)

        self.patch(PacketSocket, "send", scarce)
        one, other = DatagramEnd(self.open()), DatagramEnd(self.open())
        for _ in range(3):
            one.sendText(other, b"by UDP")
            self.isAccepted(other, [b"by UDP"])
            self.runUntil(lambda: not lanesOf(one))
            for peer in portOf(one)._peers.values():
                peer.seekAt -= SEEK_SECONDS
        self.assertGreaterEqual(tries, 3)
        one.device.close()
        other.device.close()
        self.runUntil(added.isNothing)

    def test_ringsThatCannotBeOfferedAreReplacedByUDP(self) -> None:
        self.checkUnsentRings(0)

    def test_ringsThatCannotBeAnsweredAreReplacedByUDP(self) -> None:
        self.checkUnsentRings(1)

    def test_lateRefusalEndsNoConnection(self) -> None:
        """Both devices refuse a ring, and one offers another one before it receives the refusal."""
        ends = End(self.open()), End(self.open())
        for here, there in (ends, ends[::-1]):
            here.join(there)
        for _ in range(10):
            self.reactor.iterate(0)
        one, other = (cast(SharedMemoryPort, end.device.routes[0]) for end in ends)
        refused = 0

        def scarce(descriptor: int) -> mmap.mmap:
            nonlocal refused
            if refused < 2:
                refused += 1
                raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
            return mapBox(descriptor)

        def receive(port: SharedMemoryPort) -> None:
            for line in tuple(port._links):
                line.receiveNow()

        self.patch(datagrams, "mapBox", scarce)
        one.datagrams.laneTo((other.address, other.port))
        other.datagrams.laneTo((one.address, one.port))
        receive(one)
        one.datagrams.laneTo((other.address, other.port))
        for port in (other, one, other, one):
            receive(port)
        self.assertEqual(refused, 2)
        self.assertEqual([end.qp.state for end in ends], [QPState.RTS] * 2)
        lane = one.datagrams.laneTo((other.address, other.port))
        assert lane is not None
        for port in (other, one):
            receive(port)
        self.assertTrue(lane.isUp)

    def test_deviceWithoutSharedMemoryUsesUDP(self) -> None:
        one, other = DatagramEnd(self.open()), DatagramEnd(self.open("rocev2"))
        for _ in range(3):
            one.sendText(other, b"by UDP")
            self.isAccepted(other, [b"by UDP"])
            other.sendText(one, b"and back")
            self.isAccepted(one, [b"and back"])
        self.assertEqual(lanesOf(one), [])

    def test_peerCloses(self) -> None:
        """Datagrams written before a close arrive; the successor is reached by UDP, then by shared memory."""
        one, other = self.both()
        port = other.device.port
        other.sendText(one, b"last words")
        other.device.close()
        self.isAccepted(one, [b"last words"])
        self.runUntil(lambda: not lanesOf(one))
        device = openSoftDevice(self.reactor, port=port)
        self.addCleanup(device.close)
        successor = DatagramEnd(device)
        one.sendText(successor, b"who is there?")
        self.isAccepted(successor, [b"who is there?"])
        for peer in portOf(one)._peers.values():
            peer.seekAt -= SEEK_SECONDS
        self.meet(one, successor)

    def test_recordingDeviceUsesAndRecordsUDP(self) -> None:
        name = self.mktemp()
        one, other = DatagramEnd(self.open(pcap=name)), DatagramEnd(self.open())
        for here, there, text in ((one, other, b"question"), (other, one, b"answer")):
            here.sendText(there, text)
            self.isAccepted(there, [text])
        self.assertEqual(lanesOf(other), [])
        one.device.close()
        with open(name, "rb") as file:
            recorded = file.read()
        self.assertEqual((recorded.count(b"question"), recorded.count(b"answer")), (1, 1))

    def test_closingLeavesNeitherDescriptorsNorMappings(self) -> None:
        added = Added()
        for _ in range(3):
            one, other = self.both()
            one.device.close()
            other.device.close()
        self.runUntil(added.isNothing)

    def test_suspendedDeviceHasNoTimerAndDeliversLater(self) -> None:
        one, other = self.both(route="shared-memory")
        reads = portOf(other).counters.reads
        other.device.rest()
        one.sendText(other, b"meanwhile")
        shared = cast(SharedMemoryPort, other.device.routes[0])
        self.assertFalse(shared.datagrams._timer.isPending)
        for _ in range(5):
            self.reactor.iterate(0.003)
        self.assertEqual(portOf(other).counters.reads, reads)
        other.device.wake()
        self.isAccepted(other, [b"meanwhile"])
