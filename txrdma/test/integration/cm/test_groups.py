"""IP multicast groups on loopback: software devices, and a UDP socket that another program might have."""

from __future__ import annotations

import socket
from typing import Any

from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.trial.unittest import TestCase

from txrdma.cm.connections.datagrams import (
    DatagramGroupEndpoint,
    DatagramPeer,
    DatagramProtocol,
    QKEY,
)
from txrdma.iba.headers import Opcode
from txrdma.iba.roce import RoCEPacket
from txrdma.iba.types import MULTICAST_QPN, ROCE_PORT
from txrdma.messages.protocol import MessageFactory
from txrdma.test.support.processes import groupAddress


class Member(DatagramProtocol):
    """Records datagrams, and fires C{received} with the next one."""

    def __init__(self) -> None:
        self.datagrams: list[tuple[bytes, DatagramPeer]] = []
        self.received: Deferred[bytes] = Deferred()

    def datagramReceived(self, data: bytes, peer: DatagramPeer) -> None:
        self.datagrams.append((data, peer))
        received, self.received = self.received, Deferred()
        received.callback(data)


class GroupTests(TestCase):
    def setUp(self) -> None:
        self.group = groupAddress()

    def member(self, address: str) -> Deferred[Any]:
        """Join the group from an address of loopback."""

        def joined(member: Member) -> Member:
            self.addCleanup(member.transport.loseConnection)
            return member

        endpoint: Any = DatagramGroupEndpoint(reactor, self.group, f"soft:{address}")
        joining: Deferred[Any] = endpoint.connect(MessageFactory(Member))
        return joining.addCallback(joined)

    async def test_group(self) -> None:
        """Members on two devices receive a datagram, and can answer its sender alone."""
        one, two = await self.member("127.0.0.2"), await self.member("127.0.0.3")
        arrivals = [one.received, two.received]
        one.transport.write(b"to all")
        self.assertEqual([await each for each in arrivals], [b"to all"] * 2)
        (sender,) = [peer for _data, peer in two.datagrams]
        self.assertEqual((sender.gid.ip, sender.qpn), ("127.0.0.2", one.transport.qpn))
        answer = one.received
        two.transport.write(b"to one", sender)
        self.assertEqual(await answer, b"to one")
        self.assertEqual(len(two.datagrams), 1)

    async def test_packets(self) -> None:
        """A socket in the group receives packets as annex A17 describes them."""
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as witness:
            witness.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            witness.setblocking(False)
            witness.bind((self.group, ROCE_PORT))
            membership = socket.inet_aton(self.group) + socket.inet_aton("127.0.0.2")
            witness.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, membership)
            one = await self.member("127.0.0.2")
            arrival = one.received
            one.transport.write(b"four")
            await arrival
            data, source = witness.recvfrom(2048)
        self.assertEqual(source[0], "127.0.0.2")
        packet = RoCEPacket.decode(data)
        self.assertEqual((packet.bth.opcode, packet.bth.destination), (Opcode.UD_SEND_ONLY, MULTICAST_QPN))
        self.assertEqual(data[12:16], QKEY.to_bytes(4, "big"))
        self.assertEqual(bytes(packet.payload), b"four")
