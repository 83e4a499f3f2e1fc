"""
Tests for L{txrdma.soft.rc.udp}, and for RoCE by real UDP sockets on the loopback interface.

They need a real reactor.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable
from select import select
from typing import Any, cast

from twisted.internet import reactor as theReactor
from twisted.internet.interfaces import IReactorFDSet
from twisted.internet.task import Clock
from twisted.trial.unittest import SkipTest, SynchronousTestCase, TestCase

from txrdma.error import DeviceUnavailable
from txrdma.iba.types import MTU
from txrdma.iba.verbs import Completion, Operation, QPKind, Status
from txrdma.interfaces import ICompletionQueue
from txrdma.soft.device import SoftDevice
from txrdma.soft.ports import SoftPort
from txrdma.soft.rc.roce import RoCEPort
from txrdma.soft.rc.udp import DatagramHandler, RawAddress, UDPCarrier, udpSocket
from txrdma.test.support.soft.pairs import connected, End
from txrdma.testing.reactors import waitUntil

reactor: Any = theReactor  # a module, to the type checker

UDP_NO_CHECK6_TX = 101


class Unread:
    """A reactor that never reports a descriptor as readable."""

    def addReader(self, reader: object) -> None: ...
    def removeReader(self, reader: object) -> None: ...
    def addWriter(self, writer: object) -> None: ...
    def removeWriter(self, writer: object) -> None: ...


class Taker:
    """Collects received datagrams."""

    def __init__(self) -> None:
        self.got: list[tuple[bytes, int]] = []
        self.sources: list[RawAddress] = []
        self.codepoints: list[int] = []
        self.turns = self.rooms = 0

    def received(self, data: memoryview, segment: int, source: RawAddress, codepoint: int = 0) -> None:
        self.got.append((bytes(data), segment))
        self.sources.append(source)
        self.codepoints.append(codepoint)

    def batchEnded(self) -> None:
        self.turns += 1

    def writable(self) -> None:
        self.rooms += 1

    def callbacks(self) -> tuple[DatagramHandler, Callable[[], None], Callable[[], None]]:
        """Return the arguments of C{start}."""
        return self.received, self.batchEnded, self.writable

    def datagrams(self) -> list[bytes]:
        return [data[at : at + segment] for data, segment in self.got for at in range(0, len(data), segment)]


class UDPCase(TestCase):
    """Sockets on the loopback interface, closed at the end."""

    timeout = 20

    def carrier(self, address: str = "127.0.0.1", port: int = 0, offload: bool = True) -> UDPCarrier:
        try:
            carrier = UDPCarrier(reactor, address, port, offload)
        except DeviceUnavailable as error:
            if ":" in address:
                raise SkipTest(f"no IPv6 here: {error}") from None
            raise
        self.addCleanup(carrier.close)
        return carrier


class CarrierTests(UDPCase):
    async def exchange(self, offloadThere: bool, offloadHere: bool) -> Taker:
        here, there = self.carrier(offload=offloadHere), self.carrier(offload=offloadThere)
        taker = Taker()
        here.start(*taker.callbacks())
        data = memoryview(os.urandom(10 * 1000 + 44))
        to = there.rawAddress(here.address, here.port)
        assert to is not None
        if there.segments > 10:
            self.assertTrue(there.send(data, 1000, to))
        else:
            for at in range(0, len(data), 1000):
                self.assertTrue(there.send(data[at : at + 1000], 1000, to))
        await waitUntil(reactor, lambda: sum(len(got) for got, _ in taker.got) >= len(data))
        self.assertEqual(taker.datagrams(), [bytes(data[at : at + 1000]) for at in range(0, len(data), 1000)])
        self.assertEqual(taker.sources[0][:2], ("127.0.0.1", there.port))
        self.assertGreater(taker.turns, 0)
        return taker

    async def test_offloadsMergeDatagramsIntoOneCallAtBothEnds(self) -> None:
        if not self.carrier().merges:
            raise SkipTest("this kernel has no UDP_GRO")
        taker = await self.exchange(True, True)
        self.assertEqual(len(taker.got), 1)

    async def test_withoutOffloadsDatagramsAreSentAlone(self) -> None:
        for there, here in ((False, False), (True, False), (False, True)):
            taker = await self.exchange(there, here)
            self.assertGreaterEqual(len(taker.got), 1)

    def test_datagramsToGroupUseInterfaceOfLocalAddress(self) -> None:
        carrier, option = self.carrier("::1"), (socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF)
        self.assertEqual(carrier.bound.getsockopt(*option), 0)
        self.assertEqual(carrier.rawAddress("ff0e::1", 4791), ("ff0e::1", 4791, 0, 0))
        self.assertEqual(carrier.bound.getsockopt(*option), socket.if_nametoindex("lo"))
        self.assertIsNone(self.carrier().rawAddress("ff0e::1", 4791))

    async def test_receiverLearnsECNFieldOfDatagrams(self) -> None:
        for address in ("127.0.0.1", "::1"):
            here, there = self.carrier(address), self.carrier(address)
            taker = Taker()
            here.start(*taker.callbacks())
            to = there.rawAddress(here.address, here.port)
            assert to is not None
            for count, trafficClass in ((1, 0), (1, 2), (min(3, there.segments), 0xB8 | 3), (1, 0)):
                before = len(taker.codepoints)
                self.assertTrue(there.send(memoryview(bytes(count * 100)), 100, to, trafficClass))
                await waitUntil(reactor, lambda: len(taker.codepoints) > before)  # noqa: B023 (called in this round only)
                self.assertEqual(taker.codepoints[-1], trafficClass & 3)

    def test_offloadsCanBeDisabled(self) -> None:
        carrier = self.carrier(offload=False)
        self.assertEqual((carrier.segments, carrier.merges), (1, False))

    def test_requestedPortMustBeFree(self) -> None:
        taken = self.carrier()
        self.assertRaises(DeviceUnavailable, UDPCarrier, reactor, "127.0.0.1", taken.port)

    def test_remoteAddressCannotBeBound(self) -> None:
        self.assertRaises(DeviceUnavailable, UDPCarrier, reactor, "192.0.2.1", 0)

    def test_addressesOfOtherFamilyAreUnreachable(self) -> None:
        self.assertIsNone(self.carrier().rawAddress("::1", 4791))
        self.assertEqual(self.carrier().rawAddress("10.0.0.1", 4791), ("10.0.0.1", 4791))
        self.assertIsNone(self.carrier("::1").rawAddress("10.0.0.1", 4791))

    def test_IPv6DatagramsWithoutChecksumArrive(self) -> None:
        self.carrier("::1")  # skips without IPv6
        with udpSocket("::1") as receiver, udpSocket("::1") as sender:
            receiver.bind(("::1", 0))
            sender.setsockopt(socket.IPPROTO_UDP, UDP_NO_CHECK6_TX, 1)
            sender.sendto(b"x", receiver.getsockname())
            self.assertTrue(select([receiver], [], [], 1.0)[0])

    def test_refusedDatagramIsLostAndCounted(self) -> None:
        carrier = self.carrier()
        self.assertTrue(carrier.send(memoryview(bytes(65520)), 65520, ("127.0.0.1", 9)))
        self.assertEqual(carrier.dropped, 1)

    def test_refusedBatchDisablesBatches(self) -> None:
        for alone, segments in ((None, 1), (errno.EINVAL, 64), (errno.EMSGSIZE, 64)):

            class Refusing:
                """A socket that refuses batches."""

                def sendmsg(self, *args: object) -> None:
                    raise OSError(errno.EINVAL, "no runs")

                def sendto(self, *args: object, alone: int | None = alone) -> None:
                    if alone is not None:
                        raise OSError(alone, "nothing at all")

                def fileno(self) -> int:
                    return -1

                def close(self) -> None:
                    pass

            carrier = self.carrier()
            assert carrier._socket is not None
            carrier._socket.close()
            carrier._socket = Refusing()  # type: ignore[assignment]  # all of it that is used
            carrier.segments = 64
            self.assertTrue(carrier.send(memoryview(bytes(3000)), 1000, ("127.0.0.1", 9)))
            self.assertEqual((carrier.segments, carrier.dropped), (segments, 1))

    def test_closedCarrierLeavesReactorAndFreesPort(self) -> None:
        carrier = self.carrier()
        carrier.start(*Taker().callbacks())
        self.assertIn(carrier, reactor.getReaders())
        port = carrier.port
        carrier.close()
        carrier.close()
        self.assertNotIn(carrier, reactor.getReaders())
        self.assertEqual(carrier.fileno(), -1)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
            free.bind(("127.0.0.1", port))

    async def test_carrierClosedByReceiverDeliversNothingMore(self) -> None:
        here, there = self.carrier(), self.carrier()
        taker = Taker()

        def close(data: memoryview, segment: int, source: RawAddress, codepoint: int = 0) -> None:
            taker.turns += 1
            here.close()

        taker.received = close  # type: ignore[method-assign]  # that is what is tested
        here.start(*taker.callbacks())
        for _ in range(3):
            there.send(memoryview(b"x" * 20), 20, ("127.0.0.1", here.port))
        await waitUntil(reactor, lambda: here.fileno() == -1)
        self.assertEqual(taker.turns, 1)


class BlockedTests(SynchronousTestCase):
    """A socket with a full buffer."""

    class Socket:
        """Accepts as many datagrams as configured."""

        room = 1

        def __init__(self) -> None:
            self.sent: list[bytes] = []

        def sendto(self, data: memoryview, address: object) -> None:
            if self.room == 0:
                raise BlockingIOError
            self.room -= 1
            self.sent.append(bytes(data))

        def fileno(self) -> int:
            return -1

        def close(self) -> None:
            pass

    def test_datagramsWaitInOrderForWritableSocket(self) -> None:
        carrier = UDPCarrier(reactor, "127.0.0.1", 0, offload=False)
        assert carrier._socket is not None
        carrier._socket.close()
        fake = self.Socket()
        carrier._socket = fake  # type: ignore[assignment]  # all of it that is used
        writers: list[object] = []

        class Reactor:
            def addWriter(self, writer: object) -> None:
                writers.append(writer)

            def removeWriter(self, writer: object) -> None:
                writers.remove(writer)

            def addReader(self, reader: object) -> None:
                pass

            def removeReader(self, reader: object) -> None:
                pass

        carrier._reactor = Reactor()  # type: ignore[assignment]  # the same
        clock = Clock()
        port = RoCEPort(clock, carrier)
        device = SoftDevice(clock, [SoftPort("127.0.0.1", carrier.port, [port], MTU.MTU_1024)])
        alice, bob = connected(device, device)
        for number in range(5):
            alice.write(bob, number, number, 1, there=number)
        self.assertEqual((len(fake.sent), writers), (1, [carrier]))
        while writers:
            fake.room = 2
            carrier.doWrite()
        self.assertEqual(
            [int.from_bytes(data[9:12], "big") for data in fake.sent], list(range(0xFFFFF0, 0xFFFFF5))
        )
        device.close()
        self.assertEqual(clock.calls, [])


class LoopbackTests(UDPCase):
    """Complete devices over real sockets; with offloads at both ends, the contract of devices tests them."""

    def device(self, offload: bool) -> SoftDevice:
        carrier = self.carrier(offload=offload)
        port = RoCEPort(reactor, carrier)
        device = SoftDevice(reactor, [SoftPort(carrier.address, carrier.port, [port], MTU.MTU_4096)])
        self.addCleanup(device.close)
        return device

    async def completions(self, end: End, count: int) -> list[Completion]:
        """Wait for that many completions."""
        found: list[Completion] = []

        def isEnough() -> bool:
            found.extend(end.poll())
            return len(found) >= count

        await waitUntil(reactor, isEnough)
        return found

    async def transfer(self, one: SoftDevice, other: SoftDevice, mtu: MTU) -> None:
        """WRITE and READ one MiB."""
        alice, bob = connected(one, other, pathMTU=mtu)
        alice.region.view[:] = data = os.urandom(1 << 20)
        alice.write(bob, 1, 0, 1 << 20)
        found = await self.completions(alice, 1)
        self.assertEqual([completion.status for completion in found], [Status.SUCCESS])
        self.assertEqual(bytes(bob.region.view), data)
        alice.region.view[:] = bytes(1 << 20)
        alice.rdma(Operation.RDMA_READ, bob, 2, 0, 1 << 20)
        found = await self.completions(alice, 1)
        self.assertEqual([completion.status for completion in found], [Status.SUCCESS])
        self.assertEqual(bytes(alice.region.view), data)

    async def test_transfersWorkWithOffloadsAtOneEndOrNone(self) -> None:
        for here, there, mtu in (
            (False, False, MTU.MTU_1024),
            (True, False, MTU.MTU_1024),
            (False, True, MTU.MTU_4096),
        ):
            await self.transfer(self.device(here), self.device(there), mtu)


class PollingTests(SynchronousTestCase):
    """Real sockets on a reactor that never reads them: polling finds datagrams."""

    def open(self) -> tuple[End, UDPCarrier]:
        """Return an open UD queue pair and its socket."""
        carrier = UDPCarrier(cast(IReactorFDSet, Unread()), "127.0.0.1", 0)
        port = RoCEPort(Clock(), carrier)
        device = SoftDevice(Clock(), [SoftPort("127.0.0.1", carrier.port, [port], MTU.MTU_4096)])
        self.addCleanup(device.close)
        end = End(device, QPKind.UD)
        end.open()
        return end, carrier

    def setUp(self) -> None:
        (self.alice, _), (self.bob, self.carrier) = self.open(), self.open()
        self.way = self.alice.to(self.bob)

    def send(self, *messages: bytes) -> None:
        """Send from Alice to Bob, and wait until the system has delivered something."""
        for message in messages:
            self.alice.post(1, Operation.SEND, inline=[message], **self.way)
        self.assertTrue(select([self.carrier.fileno()], [], [], 10)[0])

    def test_pollFindsDatagramWithoutWakingDescriptor(self) -> None:
        queue = ICompletionQueue(self.bob.queue)
        self.assertTrue(queue.isLive)
        self.bob.receive(7, 0, 4136)
        queue.arm()
        self.send(b"hello")
        (found,) = queue.poll(8)
        self.assertEqual((found.identifier, found.length), (7, 45))
        self.assertEqual(bytes(self.bob.region.view[40:45]), b"hello")
        self.assertEqual(select([self.bob.channel.fileno()], [], [], 0)[0], [])

    def test_pollForNothingLeavesDatagramsInSocket(self) -> None:
        self.bob.receive(0, 0, 4136)
        self.send(b"first")
        self.assertEqual(len(self.bob.queue.poll(0)), 0)
        self.assertTrue(select([self.carrier.fileno()], [], [], 0)[0])
        self.assertEqual(len(self.bob.queue.poll(1)), 1)

    def test_datagramFoundForOtherQueuePairWakesItsReader(self) -> None:
        other = End(self.bob.device, QPKind.UD)
        other.open()
        self.bob.receive(7, 0, 4136)
        self.bob.queue.arm()
        self.send(b"hello")
        self.assertEqual(other.queue.poll(8), ())
        self.assertTrue(select([self.bob.channel.fileno()], [], [], 0)[0])
        self.assertEqual([each.identifier for each in self.bob.poll()], [7])

    def test_pollDoesNotFindDatagramsOfPortDown(self) -> None:
        self.bob.receive(7, 0, 4136)
        self.bob.device.setPortEnabled(1, False)
        self.send(b"hello")
        self.assertEqual(self.bob.poll(), [])
        self.bob.device.setPortEnabled(1, True)
        self.send(b"again")
        self.assertEqual(len(self.bob.poll()), 1)
        self.assertEqual(bytes(self.bob.region.view[40:45]), b"again")

    def test_pollOfClosedDeviceReturnsNothing(self) -> None:
        queue = self.bob.queue
        self.bob.device.close()
        self.assertEqual(queue.poll(8), ())
