"""
Messages between a coordinator and its members.
"""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from txrdma.error import WireError
from txrdma.iba.types import GID
from txrdma.kit.wire import Layout
from txrdma.soft.host._messages import (
    decode,
    Enter,
    ForwardedPacket,
    HostMessageKind,
    LONGEST_PACKET,
    ManagementNotice,
    Ping,
    ProbeSeen,
    ServiceNotice,
)


class MessageTests(SynchronousTestCase):
    def test_eachMessageHasDocumentedLength(self) -> None:
        cases: list[tuple[Layout, bytes]] = [
            (Enter(kind=HostMessageKind.ENTER, version=1, share=9), b"\x01\0\x01\x09"),
            (
                ServiceNotice(kind=HostMessageKind.SERVICE, isServed=True, serviceID=0x1061D2F),
                b"\x02\x80\0\0\0\0\0\0\x01\x06\x1d\x2f",
            ),
            (ManagementNotice(kind=HostMessageKind.MANAGEMENT, isReceiving=True), b"\x03\x80\0\0"),
            (
                ProbeSeen(kind=HostMessageKind.SEEN, position=2, nonce=1 << 56),
                b"\x04\x02\0\0\x01\0\0\0\0\0\0\0",
            ),
            (Ping(kind=HostMessageKind.PING), b"\x06\0\0\0"),
        ]
        for message, raw in cases:
            self.assertEqual((message.encode(), decode(raw)), (raw, (message, b"")))

    def test_packetFollowsSendersAddress(self) -> None:
        head = ForwardedPacket(kind=HostMessageKind.PACKET, port=4791, address=GID.fromIP("192.0.2.1"))
        packet = bytes(LONGEST_PACKET)
        decoded, rest = decode(head.encode() + packet)
        self.assertEqual((decoded, rest), (head, packet))
        self.assertEqual(len(head.encode()), 20)

    def test_invalidMessagesAreRefused(self) -> None:
        packet = ForwardedPacket(kind=HostMessageKind.PACKET).encode()
        for raw in (b"", b"\0", b"\x07\0\0\0", b"\x01\0\x01", b"\x01\0\x01\x09\0", packet[:-1],
                    packet + bytes(LONGEST_PACKET + 1)):  # fmt: skip
            self.assertRaises(WireError, decode, raw)
