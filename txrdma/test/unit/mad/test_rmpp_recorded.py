"""
A long question and its long answer between two kernels: each of them is replaced by ours, and says the same.

C{txrdma/test/vectors/README.md} says where the packets come from.
"""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from txrdma.iba.path import IBPath
from txrdma.mad.core.frames import frame
from txrdma.mad.core.rmpp import WINDOW
from txrdma.mad.core.transfers import Delivered, Event, Received, RMPPTransfers
from txrdma.mad.layouts.attributes import ManagementClass, Method
from txrdma.mad.layouts.messages import RMPPType, SAFormat
from txrdma.test.support.captures import Captured, packets
from txrdma.test.unit.mad.test_recorded import datagram, path

ADMINISTRATION = ManagementClass.SUBN_ADM


def said(packet: bytes) -> bytes:
    head = packet[:26] + bytes((packet[26] & 0x07,)) + packet[27:32]
    return head if packet[25] == RMPPType.ACK else head + packet[32:]


class DoubleSidedTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.packets = packets("mad-multi")
        self.client = self.packets[0].source
        self.asked = self.data(Method.GET_MULTI)
        self.told = self.data(Method.GET_MULTI_RESP)

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
                end.received(datagram(captured), self.way(captured), 0.001)
            events += end.events()
            if not isClient and events and not end._outgoing and self.turned(captured):
                end.send(self.template(self.told[0]), self.message(self.told), way.reverse(), 0.001)
        ours += [packet.datagram for packet in end.outgoing()]
        events += end.events()
        return ours, events

    @staticmethod
    def way(captured: Captured) -> IBPath:
        return path(captured)

    @staticmethod
    def turned(captured: Captured) -> bool:
        rmpp = SAFormat.decode(datagram(captured)).rmpp
        return rmpp.type is RMPPType.ACK and rmpp.data1 == 0

    def sent(self, isClient: bool) -> list[bytes]:
        return [datagram(p) for p in self.packets if (p.source == self.client) == isClient]

    def test_client(self) -> None:
        ours, events = self.replace(True)
        self.assertEqual([said(each) for each in ours], [said(each) for each in self.sent(True)])
        delivered, received = events
        self.assertEqual(
            delivered, Delivered(self.asked[0].header.transactionID, ADMINISTRATION, isLocal=True)
        )
        assert isinstance(received, Received)
        self.assertEqual(received.message, self.message(self.told))
        turning = [each for each in ours if each[25] == RMPPType.ACK and each[28:32] == bytes(4)]
        self.assertEqual([int.from_bytes(each[32:36], "big") for each in turning], [WINDOW])

    def test_server(self) -> None:
        ours, events = self.replace(False)
        self.assertEqual([said(each) for each in ours], [said(each) for each in self.sent(False)])
        received, delivered = events
        assert isinstance(received, Received)
        self.assertEqual(received.message, self.message(self.asked))
        self.assertEqual(
            delivered, Delivered(self.asked[0].header.transactionID, ADMINISTRATION, isLocal=False)
        )
