"""IP multicast groups on this host: software devices, and a UDP socket that another program might have."""

from __future__ import annotations

import socket
import sys
from contextlib import closing
from random import randrange
from select import select
from typing import Any

from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.trial.unittest import SkipTest, TestCase

from txrdma.cm.connections.datagramqueues import QKEY
from txrdma.cm.connections.datagrams import (
    DatagramGroupEndpoint,
    DatagramPeer,
    DatagramProtocol,
)
from txrdma.error import DeviceUnavailable
from txrdma.iba.headers import Opcode
from txrdma.iba.roce import RoCEPacket
from txrdma.iba.types import MULTICAST_QPN, ROCE_PORT
from txrdma.messages.protocol import MessageFactory
from txrdma.ports.network import HostNetwork
from txrdma.ports.softdevices import softDeviceAt
from txrdma.test.support.processes import groupAddress, loopbackAddress
from txrdma.testing.reactors import waitUntil


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
    """IPv4 groups, on loopback."""

    def setUp(self) -> None:
        self.group = groupAddress()
        self.addresses = loopbackAddress(), loopbackAddress()

    def member(self, address: str) -> Deferred[Any]:
        """Join the group from an address of this host."""

        def joined(member: Member) -> Member:
            self.addCleanup(member.transport.loseConnection)
            return member

        endpoint: Any = DatagramGroupEndpoint(reactor, self.group, softDeviceAt(address))
        joining: Deferred[Any] = endpoint.connect(MessageFactory(Member))
        return joining.addCallback(joined)

    async def test_group(self) -> None:
        """Members on two devices receive a datagram, and can answer its sender alone."""
        one, two = [await self.member(each) for each in self.addresses]
        arrivals = [one.received, two.received]
        one.transport.write(b"to all")
        self.assertEqual([await each for each in arrivals], [b"to all"] * 2)
        (sender,) = [peer for _data, peer in two.datagrams]
        self.assertEqual((sender.gid.ip, sender.qpn), (self.addresses[0], one.transport.qpn))
        answer = one.received
        two.transport.write(b"to one", sender)
        self.assertEqual(await answer, b"to one")
        self.assertEqual(len(two.datagrams), 1)

    def witness(self) -> socket.socket:
        """Return a UDP socket in the group."""
        made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.setblocking(False)
        made.bind((self.group, ROCE_PORT))
        membership = socket.inet_aton(self.group) + socket.inet_aton(self.addresses[0])
        made.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, membership)
        return made

    async def test_packets(self) -> None:
        """A socket in the group receives packets as annex A17 describes them."""
        with self.witness() as witness:
            one = await self.member(self.addresses[0])
            arrival = one.received
            one.transport.write(b"four")
            await arrival
            await waitUntil(reactor, lambda: select([witness], [], [], 0)[0])
            data, source = witness.recvfrom(2048)
        self.assertEqual(source[0], self.addresses[0])
        packet = RoCEPacket.decode(data)
        self.assertEqual((packet.bth.opcode, packet.bth.destination), (Opcode.UD_SEND_ONLY, MULTICAST_QPN))
        self.assertEqual(data[12:16], QKEY.to_bytes(4, "big"))
        self.assertEqual(bytes(packet.payload), b"four")


class IPv6GroupTests(GroupTests):
    """IPv6 groups of the link, on an interface of this host: Linux has no routes for them on loopback."""

    def setUp(self) -> None:
        super().setUp()
        self.group = f"ff02::{randrange(1 << 16):x}:{randrange(1, 1 << 16):x}"
        try:
            with closing(HostNetwork.open()) as network:
                found = [
                    (address.ip, each.index)
                    for each in network.interfaces()
                    for address in each.addresses
                    if each.isRunning and not each.isLoopback and ":" in address.ip and address.isUsable
                    if not address.ip.startswith("fe80:")
                ]
        except DeviceUnavailable as error:
            raise SkipTest(str(error)) from None
        if not found:
            raise SkipTest("no interface has an IPv6 address, except link-local ones")
        address, self.index = found[0]
        self.addresses = (address, address)

    def witness(self) -> socket.socket:
        made = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.setblocking(False)
        made.bind((self.group, ROCE_PORT, 0, self.index))
        membership = socket.inet_pton(socket.AF_INET6, self.group) + self.index.to_bytes(4, sys.byteorder)
        made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, membership)
        return made
