"""
Recorded datagrams of the kernel, which are decoded and compared with txrdma's byte by byte.

C{txrdma/test/vectors/README.md} documents the origin of the packets.
"""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from txrdma.iba.path import GMP_QKEY, IBPath
from txrdma.iba.types import GID, QPN
from txrdma.mad.core.frames import frame
from txrdma.mad.core.rmpp import WINDOW
from txrdma.mad.core.transfers import Delivered, Event, RMPPTransfers, TransferReceived
from txrdma.mad.layouts.attributes import ManagementClass, Method
from txrdma.mad.layouts.messages import (
    MADHeader,
    MADStatus,
    PerformanceFormat,
    RMPPHeader,
    RMPPType,
    SAFormat,
)
from txrdma.test.support.captures import Captured, packets

TABLE = bytes(number & 255 for number in range(1000))
"""The contents of the recorded table."""


def datagram(captured: Captured) -> bytes:
    return captured.packet.payload


def path(captured: Captured) -> IBPath:
    source, destination = (GID.fromIP(address) for address in (captured.source, captured.destination))
    return IBPath(sgid=source, dgid=destination, sqpn=QPN(1), dqpn=QPN(1), qkey=GMP_QKEY)


def withoutResponseTime(packet: bytes) -> bytes:
    return packet[:26] + bytes((packet[26] & 0x07,)) + packet[27:]


class PerformanceTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.packets = packets("mad-perf-get")
        self.datagrams = [datagram(each) for each in self.packets]

    def test_request(self) -> None:
        header = MADHeader.decode(self.datagrams[0])
        ours = frame(ManagementClass.PERFORMANCE, Method.GET, header.transactionID, 0x0012, 0, b"")
        self.assertEqual(ours, self.datagrams[0])

    def test_answer(self) -> None:
        asked, reported = (PerformanceFormat.decode(each) for each in self.datagrams[:2])
        self.assertIs(reported.header.method, Method.GET_RESP)
        self.assertEqual(reported.header.transactionID, asked.header.transactionID)
        self.assertEqual(reported.payload[:8], b"counters")

    def test_unserved(self) -> None:
        header = MADHeader.decode(self.datagrams[3])
        self.assertEqual(header.status, MADStatus.UNSUPPORTED_METHOD_ATTRIBUTE)


class TableTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.packets = packets("mad-rmpp")
        self.request, *self.rest = self.packets
        client = self.request.source
        self.segments = [p for p in self.rest if p.source != client and self.kind(p) is RMPPType.DATA]
        self.acknowledgements = [p for p in self.rest if p.source == client]

    @staticmethod
    def kind(captured: Captured) -> RMPPType:
        return RMPPHeader.decode(datagram(captured), 24).type

    def test_receiving(self) -> None:
        """The kernel's segments are reassembled to the table; the ACKs equal those of the other kernel."""
        long = RMPPTransfers()
        ours: list[bytes] = []
        for captured in self.segments:
            long.received(datagram(captured), path(captured), 0.0)
            for packet in long.outgoing():
                self.assertEqual(packet.path.dgid, GID.fromIP(captured.source))
                ours.append(packet.datagram)
        (event,) = long.events()
        assert isinstance(event, TransferReceived)
        self.assertEqual(event.message, TABLE)
        self.assertEqual(event.first, datagram(self.segments[0]))
        first, last = (datagram(each) for each in self.acknowledgements)
        # The kernel's window is smaller than txrdma's, and does not move with the last segment.
        self.assertEqual(withoutResponseTime(ours[0])[:32] + first[32:36] + ours[0][36:], first)
        self.assertEqual(withoutResponseTime(ours[1])[:32] + last[32:36] + ours[1][36:], last)
        self.assertEqual(len(ours), 2)

    def test_sending(self) -> None:
        first = datagram(self.segments[0])
        header = MADHeader.decode(first)
        template = frame(
            *(ManagementClass.SUBN_ADM, Method.GET_TABLE_RESP, header.transactionID, header.attributeID),
            *(0, b""),
        )
        long = RMPPTransfers()
        ours: list[bytes] = []
        long.send(template, TABLE, path(self.request).reverse(), 0.0)
        ours += [packet.datagram for packet in long.outgoing()]
        self.assertEqual(len(ours), 1)
        for captured in self.acknowledgements:
            self.assertEqual(long.events(), [])
            long.received(datagram(captured), path(captured), 0.1)
            ours += [packet.datagram for packet in long.outgoing()]
        self.assertEqual([withoutResponseTime(each) for each in ours], [datagram(p) for p in self.segments])
        delivered = Delivered(header.transactionID, ManagementClass.SUBN_ADM, isLocal=False)
        self.assertEqual(long.events(), [delivered])
        self.assertIsNone(long.deadline())

    def test_lengths(self) -> None:
        headers = [SAFormat.decode(datagram(each)).rmpp for each in self.segments]
        self.assertEqual(headers[0].data2, len(TABLE) + 20 * len(headers))
        self.assertEqual(headers[-1].data2, len(TABLE) - 4 * 200 + 20)


ADMINISTRATION = ManagementClass.SUBN_ADM


def output(packet: bytes) -> bytes:
    return withoutResponseTime(packet[:32] if packet[25] == RMPPType.ACK else packet)


class DoubleSidedTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.packets = packets("mad-multi")
        self.client = self.packets[0].source
        self.asked = self.data(Method.GET_MULTI)
        self.answerTo = self.data(Method.GET_MULTI_RESP)

    def data(self, method: Method) -> list[SAFormat]:
        frames = [SAFormat.decode(datagram(captured)) for captured in self.packets]
        return [f for f in frames if f.header.method is method and f.rmpp.type is RMPPType.DATA]

    @staticmethod
    def message(segments: list[SAFormat]) -> bytes:
        last = segments[-1]
        return b"".join(s.payload for s in segments[:-1]) + last.payload[: last.rmpp.data2 - 20]

    @staticmethod
    def template(first: SAFormat) -> bytes:
        header = first.header
        return frame(
            *(ADMINISTRATION, header.method, header.transactionID, header.attributeID, 0, b""),
            componentMask=first.componentMask,
            attributeOffset=first.attributeOffset,
        )

    def replace(self, isClient: bool) -> tuple[list[bytes], list[Event]]:
        end, ours, events = RMPPTransfers(), list[bytes](), list[Event]()
        way = path(self.packets[0])
        if isClient:
            end.send(self.template(self.asked[0]), self.message(self.asked), way, 0.0)
        for captured in self.packets:
            ours += [packet.datagram for packet in end.outgoing()]
            if (captured.source == self.client) != isClient:
                end.received(datagram(captured), path(captured), 0.001)
            events += end.events()
            if not isClient and events and not end._outgoing and self.turned(captured):
                end.send(self.template(self.answerTo[0]), self.message(self.answerTo), way.reverse(), 0.001)
        ours += [packet.datagram for packet in end.outgoing()]
        events += end.events()
        return ours, events

    @staticmethod
    def turned(captured: Captured) -> bool:
        rmpp = SAFormat.decode(datagram(captured)).rmpp
        return rmpp.type is RMPPType.ACK and rmpp.data1 == 0

    def sent(self, isClient: bool) -> list[bytes]:
        return [datagram(p) for p in self.packets if (p.source == self.client) == isClient]

    def test_client(self) -> None:
        ours, events = self.replace(True)
        self.assertEqual([output(each) for each in ours], [output(each) for each in self.sent(True)])
        delivered, received = events
        self.assertEqual(
            delivered, Delivered(self.asked[0].header.transactionID, ADMINISTRATION, isLocal=True)
        )
        assert isinstance(received, TransferReceived)
        self.assertEqual(received.message, self.message(self.answerTo))
        turning = [each for each in ours if each[25] == RMPPType.ACK and each[28:32] == bytes(4)]
        self.assertEqual([int.from_bytes(each[32:36], "big") for each in turning], [WINDOW])

    def test_server(self) -> None:
        ours, events = self.replace(False)
        self.assertEqual([output(each) for each in ours], [output(each) for each in self.sent(False)])
        received, delivered = events
        assert isinstance(received, TransferReceived)
        self.assertEqual(received.message, self.message(self.asked))
        self.assertEqual(
            delivered, Delivered(self.asked[0].header.transactionID, ADMINISTRATION, isLocal=False)
        )
