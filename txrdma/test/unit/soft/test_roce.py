"""
Tests for L{txrdma.soft.rc.roce}, its routes, and L{txrdma.soft.rc._datagram}, over a simulated network.
"""

from __future__ import annotations

import errno
import ipaddress
import os
from dataclasses import replace
from io import BytesIO
from random import Random
from typing import Any
from unittest.mock import Mock

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from txrdma.iba import captures
from txrdma.iba.headers import BTH, DETH, Opcode
from txrdma.iba.pcap import CapturedDatagram, RoCECapture
from txrdma.iba.roce import RoCEPacket, UDPFlow
from txrdma.iba.types import DEFAULT_PKEY, LKey, MTU, QPN
from txrdma.iba.verbs import (
    Completion,
    CompletionOpcode,
    Operation,
    QPAttributes,
    QPKind,
    QPState,
    ReceiveRequest,
    SendRequest,
    Status,
)
from txrdma.sim.network import Faults, SimulatedCarrier, SimulatedNetwork
from txrdma.soft.device import SoftDevice
from txrdma.soft.rc import roce
from txrdma.soft.rc._datagram import GRH_LENGTH
from txrdma.soft.rc.peers import _LENGTHS
from txrdma.soft.rc.roce import RoCEPort
from txrdma.test.support.captures import packets
from txrdma.test.support.clocks import elapse
from txrdma.test.support.soft.pairs import connected, datagramEnds, End, QKEY

ALICE, BOB = "10.0.0.1", "10.0.0.2"


def portOf(device: SoftDevice) -> RoCEPort:
    """The RoCE port of a simulated device."""
    [port] = device.routes
    assert isinstance(port, RoCEPort)
    return port


class NetworkCase(SynchronousTestCase):
    """Two devices on a simulated network."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.network = SimulatedNetwork(self.clock, seed=7)
        self.one, self.other = self.devices(ALICE, BOB)

    def devices(self, *addresses: str, **more: Any) -> list[SoftDevice]:
        devices = [self.network.device(address, **more) for address in addresses]
        for device in devices:
            self.addCleanup(device.close)
        return devices

    def run_(self, seconds: float = 1.0) -> None:
        """Advance the time by minimal steps."""
        elapse(self.clock, seconds)

    def statuses(self, end: End) -> list[tuple[int, Status]]:
        return [(completion.identifier, completion.status) for completion in end.poll()]


class PeersTests(NetworkCase):
    def test_most(self) -> None:
        """Addresses of senders are remembered within a limit, and connections do not depend on that."""
        self.patch(roce, "_PEERS", 4)
        alice, bob = connected(self.one, self.other)
        port, stranger = portOf(self.other), self.network.carrier("10.0.0.66")
        for number in range(20):
            port._peer(("10.0.0.66", number))
            self.assertLessEqual(len(port._peers), 4)
        stranger.send(memoryview(bytes(64)), 64, (BOB, 4791))
        alice.write(bob, 1, 0, 8)
        self.run_()
        self.assertEqual(self.statuses(alice), [(1, Status.SUCCESS)])


class ConnectionTests(NetworkCase):
    """RC queue pairs over UDP."""

    def setUp(self) -> None:
        super().setUp()
        self.alice, self.bob = connected(self.one, self.other)

    def test_packetsOfOtherHostsAreDropped(self) -> None:
        bth = BTH(
            opcode=Opcode.RC_ACKNOWLEDGE, pkey=DEFAULT_PKEY, destination=self.bob.qp.number, psn=0xFFFFF0
        )
        unknownPeer = self.network.carrier("10.0.0.66")
        flow = UDPFlow("10.0.0.66", unknownPeer.port, BOB, 4791)
        datagram = flow.seal(RoCEPacket(bth).encode() + bytes(4))
        unknownPeer.send(memoryview(datagram), len(datagram), (BOB, 4791))
        self.run_()
        self.assertEqual(portOf(self.other).counters.strays, 1)
        self.assertEqual(self.bob.events, [])

    def test_closedDeviceLeavesNoTimers(self) -> None:
        self.network.partition(ALICE, BOB)
        self.alice.write(self.bob, 1, 0, 1 << 20)
        self.one.close()
        self.other.close()
        self.assertEqual(self.clock.calls, [])

    def test_fullSocketIsRetriedWithoutLoss(self) -> None:
        self.network.faults = Faults(congestion=0.5)
        data = os.urandom(1 << 20)
        self.alice.region.view[:] = data
        self.alice.write(self.bob, 1, 0, 1 << 20)
        self.run_(0.06)  # before any timer fires
        self.assertEqual(self.statuses(self.alice), [(1, Status.SUCCESS)])
        self.assertEqual(bytes(self.bob.region.view), data)

    def test_ipv6(self) -> None:
        one, other = self.devices("2001:db8::1", "2001:db8::2")
        alice, bob = connected(one, other)
        alice.region.view[:] = data = os.urandom(1 << 20)
        alice.write(bob, 1, 0, 1 << 20)
        self.run_()
        self.assertEqual(self.statuses(alice), [(1, Status.SUCCESS)])
        self.assertEqual(bytes(bob.region.view), data)
        self.assertEqual(portOf(other).counters.wrongICRC, 0)

    def test_otherPortIsReachedByMAC(self) -> None:
        [third] = self.devices(BOB)
        self.assertEqual((self.other.port, third.port), (4791, 4792))
        alice, carol = connected(self.one, third)
        alice.write(carol, 1, 0, 100)
        self.run_()
        self.assertEqual(self.statuses(alice), [(1, Status.SUCCESS)])
        self.assertEqual(portOf(self.other).counters.packetsReceived, 0)

    def test_otherAddressFamilyIsUnreachable(self) -> None:
        from txrdma.error import DeviceUnavailable

        [sixth] = self.devices("2001:db8::1")
        alice, bob = End(self.one), End(sixth)
        self.assertRaises(DeviceUnavailable, alice.join, bob)


class FrameTests(NetworkCase):
    def test_longMessageMakesFewSystemCalls(self) -> None:
        alice, bob = connected(self.one, self.other)
        bob.receive(1, 0, 100)
        length = 64 * 1024
        requests = [
            SendRequest(
                1,
                Operation.RDMA_WRITE,
                [alice.segment(0, length)],
                remoteAddress=bob.region.address,
                rkey=bob.region.rkey,
            ),
            SendRequest(2, Operation.SEND, inline=[b"x" * 44]),
        ]
        alice.qp.postSend(requests)
        self.run_()
        counters = portOf(self.one).counters
        self.assertEqual(counters.packetsSent, 65)
        # The first packet is longer than the others, which are sent 16 at a time, with the short one last.
        self.assertEqual(counters.writes, 1 + 4)
        self.assertEqual(self.statuses(alice), [(1, Status.SUCCESS), (2, Status.SUCCESS)])

    def test_withoutSegmentationEachPacketGoesAlone(self) -> None:
        one, other = self.devices("10.0.0.3", "10.0.0.4", segments=1)
        alice, bob = connected(one, other)
        alice.region.view[:] = data = os.urandom(1 << 20)
        alice.write(bob, 1, 0, 1 << 20)
        self.run_()
        counters = portOf(one).counters
        self.assertEqual(counters.writes, counters.packetsSent)
        self.assertEqual(bytes(bob.region.view), data)


class SpoiltTests(NetworkCase):
    def setUp(self) -> None:
        super().setUp()
        self.alice, self.bob = connected(self.one, self.other)
        self.sent: list[bytes] = []

    def deliver(self, datagram: bytes) -> None:
        """Deliver a datagram to Bob's port as if from Alice."""
        port = portOf(self.other)
        port.received(memoryview(datagram), max(len(datagram), 1), (ALICE, 4791))
        port.batchEnded()

    def sealed(self, packet: bytes) -> bytes:
        return UDPFlow(ALICE, 4791, BOB, 4791).seal(packet)

    def write(self, **changes: Any) -> bytes:
        """Return an RDMA WRITE of C{x}, without ICRC."""
        bth = BTH(
            opcode=Opcode.RC_RDMA_WRITE_ONLY,
            pkey=DEFAULT_PKEY,
            destination=self.bob.qp.number,
            psn=0xFFFFF0,
            acknowledge=True,
        ).replace(**changes)
        region = self.bob.region
        reth = region.address.to_bytes(8, "big") + region.rkey.to_bytes(4, "big") + (4).to_bytes(4, "big")
        return bth.encode() + reth + b"xxxx"

    def test_wrongICRC(self) -> None:
        good = self.sealed(self.write())
        for place in range(len(good)):
            spoilt = bytearray(good)
            spoilt[place] ^= 0x11
            self.deliver(bytes(spoilt))
            if place == 4:
                self.assertEqual(bytes(self.bob.region.view[:4]), b"xxxx")
                self.setUp()
                good = self.sealed(self.write())
        self.assertEqual(bytes(self.bob.region.view[:4]), bytes(4))
        self.assertEqual(self.bob.events, [])
        self.assertGreater(portOf(self.other).counters.wrongICRC, 30)

    def deliverBatch(self, spoilt: dict[int, int]) -> tuple[int, int]:
        """
        Deliver ten datagrams in one read; C{spoilt} has the bits to change in the payload of some.

        @return: the numbers of received and of wrong packets.
        """
        flow = UDPFlow(ALICE, 4791, BOB, 4791)
        packets = [self.write(psn=0xFFFFF0 + number) for number in range(10)]
        datagrams = [bytearray(flow.seal(packet, number)) for number, packet in enumerate(packets)]
        for number, bits in spoilt.items():
            datagrams[number][-5] ^= bits
        port = portOf(self.other)
        port.received(memoryview(b"".join(datagrams)), len(datagrams[0]), (ALICE, 4791))
        port.batchEnded()
        return port.counters.packetsReceived, port.counters.wrongICRC

    def test_datagramsOfOneReadHaveTheirIdentifications(self) -> None:
        self.assertEqual(self.deliverBatch({}), (10, 0))
        self.assertEqual(bytes(self.bob.region.view[:4]), b"xxxx")

    def test_onlyWrongICRCsOfBatchAreDropped(self) -> None:
        for spoilt in ({0: 1}, {4: 0x80}, {9: 0xFF}, {3: 1, 4: 1}, dict.fromkeys(range(10), 1)):
            self.setUp()
            self.assertEqual(self.deliverBatch(spoilt), (10 - len(spoilt), len(spoilt)))

    def test_batchesOfManyLengthsUseLimitedMemory(self) -> None:
        peer = portOf(self.other)._peer((ALICE, 4791))
        assert peer is not None
        most = 0
        for length in range(52, 52 + 4 * 3 * _LENGTHS, 4):
            for _each in range(2):
                sums = peer.takingSums(length, 3)
                self.assertEqual(len(sums), 4)
            most = max(most, len(peer._takingSums))
        self.assertEqual(most, _LENGTHS)
        self.assertEqual(self.deliverBatch({4: 1}), (9, 1))

    def test_malformedPacketsAreDropped(self) -> None:
        for packet in (
            self.write(version=1),
            self.write(pkey=0x8001),
            bytes(12) + b"",
            BTH(
                opcode=Opcode.RC_SEND_ONLY, pad=3, pkey=DEFAULT_PKEY, destination=self.bob.qp.number
            ).encode(),
        ):
            before = portOf(self.other).counters.malformed
            self.deliver(self.sealed(packet))
            self.assertEqual(portOf(self.other).counters.malformed, before + 1)
        for datagram in (b"", b"x", bytes(15), bytes(16)[:13], bytes(17)):
            self.deliver(datagram)
        self.assertEqual(bytes(self.bob.region.view[:4]), bytes(4))
        self.assertIs(self.bob.qp.state, QPState.RTS)

    def test_arbitraryBytesAreIgnored(self) -> None:
        self.alice.write(self.bob, 1, 0, 10)
        for seed in range(2000):
            self.deliver(Random(seed).randbytes(seed % 90))
        self.run_()
        self.assertEqual(self.statuses(self.alice), [(1, Status.SUCCESS)])

    def test_hostilePacketsEndAtMostTheirConnection(self) -> None:
        random = Random(7)
        for number in range(1500):
            if self.bob.qp.state is not QPState.RTS:
                self.bob = End(self.other)
                self.bob.join(self.alice)
            guard = bytes(self.bob.region.view)
            bth = BTH(
                opcode=Opcode(random.randrange(256)),
                pkey=DEFAULT_PKEY,
                pad=random.randrange(4),
                destination=self.bob.qp.number,
                psn=0xFFFFF0 + random.randrange(-2, 3) & 0xFFFFFF,
                acknowledge=True,
            )
            packet = bth.encode() + random.randbytes(4 * random.randrange(12))
            self.deliver(self.sealed(packet))
            self.assertEqual(bytes(self.bob.region.view), guard, number)


class SetBackTests(NetworkCase):
    """Connections of processes whose system's clock, which Twisted's reactors use, is set back."""

    HOUR = 3600.0

    def setUp(self) -> None:
        super().setUp()
        self.clock.advance(2 * self.HOUR)
        self.alice, self.bob = connected(self.one, self.other)

    def setBack(self) -> None:
        """Set the clock back: delayed calls of the ports that wait are made later by that, as by reactors."""
        self.clock.rightNow -= self.HOUR
        for call in self.clock.calls:
            if not isinstance(getattr(call.func, "__self__", None), RoCEPort):
                call.delay(-self.HOUR)
        self.clock.calls.sort(key=lambda call: call.getTime())

    def test_lostRequestIsSentAgainAfterNextPacket(self) -> None:
        self.bob.receive(1, 0, 100)
        self.network.drop(lambda packet: True)
        self.alice.post(2, Operation.SEND, inline=[b"lost"])
        self.run_(1e-3)
        self.setBack()
        self.bob.write(self.alice, 3, 0, 100)
        self.run_()
        self.assertEqual(self.statuses(self.alice), [(2, Status.SUCCESS)])

    def test_lostRequestOfAnotherDeviceIsSentAgain(self) -> None:
        """A packet of any device of the process ends the wait of all of them."""
        carol, dave = connected(*self.devices("10.0.0.3", "10.0.0.4"))
        self.network.drop(lambda packet: True)
        carol.write(dave, 1, 0, 100)
        self.run_(1e-3)
        self.setBack()
        self.alice.write(self.bob, 2, 0, 100)
        self.run_()
        self.assertEqual(self.statuses(carol), [(1, Status.SUCCESS)])

    def test_pauseAfterRNREndsWithNextRequest(self) -> None:
        self.alice.post(2, Operation.SEND, inline=[b"not ready"])
        self.run_(5e-5)
        self.setBack()
        for identifier in range(2):
            self.bob.receive(identifier, 0, 100)
        self.alice.post(3, Operation.SEND, inline=[b"ready"])
        self.run_()
        self.assertEqual(self.statuses(self.alice), [(2, Status.SUCCESS), (3, Status.SUCCESS)])


class CaptureTests(NetworkCase):
    """C{pcap=} records sent and received packets."""

    def test_captureHasBothDirections(self) -> None:
        file = BytesIO()
        [one] = self.devices("10.0.0.3", capture=RoCECapture(file))
        alice, bob = connected(one, self.other)
        bob.receive(1, 0, 100)
        alice.write(bob, 1, 0, 5000)
        alice.post(2, Operation.SEND, inline=[b"hello"])
        self.run_()
        counters = portOf(one).counters
        file.seek(0)
        found = [CapturedDatagram.decode(record.data) for record in captures.captured(file)]
        self.assertEqual(len(found), counters.packetsSent + counters.packetsReceived)
        directions = set()
        for datagram in found:
            assert datagram is not None
            source, destination = (
                str(ipaddress.ip_address(raw)) for raw in (datagram.ip.source, datagram.ip.destination)
            )
            flow = UDPFlow(source, datagram.udp.sourcePort, destination, datagram.udp.destinationPort)
            self.assertEqual(flow.identification(datagram.payload), 0)
            directions.add((source, destination))
        self.assertEqual(directions, {("10.0.0.3", BOB), (BOB, "10.0.0.3")})

    def test_fullFileEndsOnlyRecording(self) -> None:
        """If the file can't be written any more, packets are no longer recorded, but still exchanged."""
        file = FullFile()
        [one] = self.devices("10.0.0.3", capture=RoCECapture(file))
        alice, bob = connected(one, self.other)
        alice.write(bob, 1, 0, 100)
        self.run_()
        found = file.getvalue()
        file.isFull = True
        alice.write(bob, 2, 0, 5000)
        bob.write(alice, 3, 0, 5000)
        self.run_()
        self.assertEqual(self.statuses(alice), [(1, Status.SUCCESS), (2, Status.SUCCESS)])
        self.assertEqual(self.statuses(bob), [(3, Status.SUCCESS)])
        file.isFull = False
        alice.write(bob, 4, 0, 100)
        self.run_()
        self.assertEqual(self.statuses(alice), [(4, Status.SUCCESS)])
        self.assertEqual(file.getvalue(), found)


class FullFile(BytesIO):
    """A file in memory whose file system may be full."""

    isFull = False

    def write(self, data: Any) -> int:
        if self.isFull:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().write(data)


class TrafficClassTests(NetworkCase):
    """Packets have the traffic class of their path."""

    def setUp(self) -> None:
        super().setUp()
        self.classes: list[int] = []
        carrier = portOf(self.one)._carrier
        send = carrier.send

        def sending(data: memoryview, segment: int, to: Any, trafficClass: int = 0) -> bool:
            self.classes.append(trafficClass)
            return send(data, segment, to, trafficClass)

        self.patch(carrier, "send", sending)

    def exchange(self, alice: End, bob: End, identifier: int) -> set[int]:
        """Write to each other; return the traffic classes of the packets of the first end."""
        self.classes.clear()
        alice.write(bob, identifier, 0, 5000)
        bob.write(alice, identifier, 0, 5000)
        self.run_()
        for end in (alice, bob):
            self.assertEqual(self.statuses(end), [(identifier, Status.SUCCESS)])
        return set(self.classes)

    def test_connectionUsesTrafficClassOfItsPath(self) -> None:
        alice, bob = End(self.one), End(self.other)
        vector = replace(bob.vector(), trafficClass=0xB8)
        self.patch(bob, "vector", lambda: vector)
        alice.join(bob)
        bob.join(alice)
        self.assertEqual(self.exchange(alice, bob, 1), {0xB8})
        alice.qp.modify(QPAttributes(state=QPState.SQD))
        alice.qp.modify(QPAttributes(address=replace(vector, trafficClass=0x20)))
        alice.qp.modify(QPAttributes(state=QPState.RTS))
        self.assertEqual(self.exchange(alice, bob, 2), {0x20})

    def test_failedSendLeavesNothingToOthers(self) -> None:
        """An exception while packets of one connection are sent does not fail the next connection."""
        (alice, bob), (carol, dave) = connected(self.one, self.other), connected(self.one, self.other)
        patcher = self.patch(portOf(self.one)._carrier, "send", Mock(side_effect=ValueError))
        alice.write(bob, 1, 0, 100)
        patcher.restore()
        self.assertEqual(len(self.flushLoggedErrors(ValueError)), 1)
        carol.write(dave, 2, 0, 100)
        self.run_()
        self.assertEqual(self.statuses(carol), [(2, Status.SUCCESS)])


class DatagramTests(NetworkCase):
    """UD queue pairs."""

    def setUp(self) -> None:
        super().setUp()
        self.alice, self.bob = datagramEnds(self.one, self.other)

    def send(self, identifier: int, data: bytes, operation: Operation = Operation.SEND, **more: Any) -> None:
        self.alice.post(identifier, operation, **{"inline": [data], **self.alice.to(self.bob), **more})

    def test_receiveWithoutAccessEndsQueuePair(self) -> None:
        """
        A datagram for a receive with a wrong key fails the receive and the queue pair, like a message of a
        connection (IBA 9.9.3, class A). Later receives are flushed.
        """
        wrong = self.bob.segment(0, 100)._replace(lkey=LKey(self.bob.region.lkey ^ 1))
        self.bob.qp.postReceive([ReceiveRequest(1, [wrong])])
        self.bob.receive(2, 0, 100)
        for identifier in range(2):
            self.send(identifier, b"datagram")
        self.run_()
        self.assertEqual(self.statuses(self.bob), [(1, Status.LOC_PROT_ERR), (2, Status.WR_FLUSH_ERR)])
        self.assertEqual(self.bob.qp.state, QPState.ERR)
        self.assertEqual(self.statuses(self.alice), [(0, Status.SUCCESS), (1, Status.SUCCESS)])

    def test_anyViewOfBytesIsSentInline(self) -> None:
        """Also views of words, and of bytes that are not contiguous, alone and behind other bytes."""
        content = b"01234567"
        views = (
            memoryview(content).cast("I"),
            memoryview(bytes(byte for byte in content for _ in range(2)))[::2],
        )
        for identifier, view in enumerate(views):
            for inline in ([view], [b"head", view]):
                self.bob.receive(identifier, 0, 100)
                self.alice.post(identifier, Operation.SEND, inline=inline, **self.alice.to(self.bob))
                self.run_()
                self.assertEqual(self.statuses(self.bob), [(identifier, Status.SUCCESS)])
                length = GRH_LENGTH + 8 + 4 * (len(inline) - 1)
                self.assertEqual(bytes(self.bob.region.view[length - 8 : length]), content)

    def test_severalPeersAreResolvedInTurn(self) -> None:
        [third] = self.devices("10.0.0.3")
        carol = End(third, QPKind.UD)
        carol.open()
        ends = (self.bob, carol)
        handles = [self.alice.domain.createAddressHandle(end.vector()) for end in ends]
        numbers = [0, 0, 1, 0, 1, 1]
        for end in ends:
            for identifier in range(3):
                end.receive(identifier, 200 * identifier, 200)
        for which in numbers:
            to: dict[str, Any] = {"address": handles[which], "remoteQPN": ends[which].qp.number}
            self.send(which, b"%d" % which, **to)
        self.run_()
        for which, end in enumerate(ends):
            self.assertEqual([each[0] for each in self.statuses(end)], [0, 1, 2])
            found = {bytes(end.region.view[200 * each + 40 : 200 * each + 41]) for each in range(3)}
            self.assertEqual(found, {b"%d" % which})

    def test_severalInlineBuffers(self) -> None:
        """A datagram consists of its inline buffers, of any types and lengths, with and without immediate."""
        body = bytes(range(200))
        for head, data in (
            (b"", body),
            (b"hea", body[:5]),
            (b"head", memoryview(body)[7:150]),
            (b"12345", memoryview(body)[::2]),
            (b"12345", memoryview(body).cast("B", (10, 20))),
            (b"12345", memoryview(body).cast("I")),
            (b"12345", bytearray(body)),
            (memoryview(b"xy"), b""),
        ):
            for operation in (Operation.SEND, Operation.SEND_WITH_IMMEDIATE):
                expected = bytes(head) + bytes(data)
                self.bob.receive(1, 0, 400)
                self.send(2, b"", inline=[head, data], operation=operation)
                self.run_()
                self.assertEqual(self.bob.poll()[0].length, 40 + len(expected))
                self.assertEqual(bytes(self.bob.region.view[40 : 40 + len(expected)]), expected)

    def test_inlineBytesAreCopiedWhenPosted(self) -> None:
        self.bob.receive(1, 0, 400)
        head, body = bytearray(b"head"), bytearray(b"body")
        port = portOf(self.one)
        port._inTurn = True  # a batch of packets is being processed
        self.send(2, b"", inline=[head, memoryview(body)])
        head[:], body[:] = b"xxxx", b"yyyy"
        port.batchEnded()
        self.run_()
        self.assertEqual(self.bob.poll()[0].length, 48)
        self.assertEqual(bytes(self.bob.region.view[40:48]), b"headbody")

    def test_datagramFollowsIPv4Header(self) -> None:
        self.bob.receive(1, 0, 200)
        self.send(2, b"hello")
        self.run_()
        self.assertEqual(self.statuses(self.alice), [(2, Status.SUCCESS)])
        [completion] = self.bob.poll()
        self.assertEqual(
            completion,
            Completion(
                1,
                Status.SUCCESS,
                CompletionOpcode.RECEIVE,
                self.bob.qp.number,
                45,
                None,
                self.alice.qp.number,
                True,
            ),
        )
        raw = bytes(self.bob.region.view[:46])
        self.assertEqual(raw[40:], b"hello\0")
        self.assertEqual(raw[:20], bytes(20))
        self.assertEqual((raw[20], raw[29]), (0x45, 17))
        self.assertEqual(raw[32:40], bytes((10, 0, 0, 1, 10, 0, 0, 2)))

    def test_qkey(self) -> None:
        self.bob.receive(1, 0, 200)
        self.send(2, b"wrong", remoteQKey=QKEY + 1)
        self.send(3, b"own", remoteQKey=0x80000000)
        self.run_()
        self.assertEqual(self.statuses(self.alice), [(2, Status.SUCCESS), (3, Status.SUCCESS)])
        self.assertEqual([completion.length for completion in self.bob.poll()], [43])

    def test_datagramFollowsIPv6Header(self) -> None:
        self.one, self.other = self.devices("2001:db8::1", "2001:db8::2")
        self.alice, self.bob = datagramEnds(self.one, self.other)
        self.bob.receive(1, 0, 200)
        self.send(2, b"hello")
        self.run_()
        raw = bytes(self.bob.region.view[:45])
        self.assertEqual(raw[0] >> 4, 6)
        self.assertEqual(raw[8:24], ipaddress.ip_address("2001:db8::1").packed)
        self.assertEqual(raw[40:], b"hello")

    def test_connectionPacketsForUDAreDropped(self) -> None:
        bth = BTH(opcode=Opcode.RC_SEND_ONLY, pkey=DEFAULT_PKEY, destination=self.bob.qp.number, psn=1)
        port = portOf(self.other)
        datagram = UDPFlow(ALICE, 4791, BOB, 4791).seal(bth.encode())
        port.received(memoryview(datagram), len(datagram), (ALICE, 4791))
        port.batchEnded()
        self.assertEqual(port.counters.strays, 1)


class RecordedTests(SynchronousTestCase):
    """Datagrams recorded from the kernel's rxe."""

    def device(self, address: str) -> tuple[SoftDevice, SimulatedCarrier]:
        network = SimulatedNetwork(Clock())
        device = network.device(address, mtu=MTU.MTU_1024)
        self.addCleanup(device.close)
        return device, network.carrier("10.0.0.9")

    def test_recordedDatagramsAreReceived(self) -> None:
        device, _carrier = self.device("10.77.0.2")
        end = End(device, QPKind.UD)
        end.open()
        taken = 0
        for captured in packets("ud-pingpong"):
            if captured.destination != "10.77.0.2":
                continue
            deth = captured.packet.get(DETH)
            assert deth is not None
            port = portOf(device)
            # the queue pair of the recording had another number
            for route in list(port._routes.values()):
                port._routes[QPN(captured.packet.bth.destination)] = route
            end.receive(taken, 0, 600)
            data = memoryview(captured.payload)
            port.received(data, len(data), (captured.source, captured.udp.sourcePort))
            port.batchEnded()
            [completion] = end.poll()
            self.assertEqual((completion.length, completion.sourceQPN), (552, deth.source))
            self.assertEqual(bytes(end.region.view[40:552]), b"\x7b" * 512)
            self.assertEqual(bytes(end.region.view[32:40]), bytes((10, 77, 0, 1, 10, 77, 0, 2)))
            taken += 1
        self.assertEqual(taken, 2)
        self.assertEqual(portOf(device).counters.wrongICRC, 0)
