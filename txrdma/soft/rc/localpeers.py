"""
Datagrams of a RoCE port to devices of this host, through shared memory.

The packets are the same as over UDP and are counted as such, but have no ICRC.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from txrdma.iba.headers import Opcode
from txrdma.iba.types import DEFAULT_PKEY, MULTICAST_QPN, QPN, ROCE_PORT
from txrdma.soft.core.netdev import portOfQueuePair
from txrdma.soft.rc._datagram import START
from txrdma.soft.rc._packets import FRAME, HEAD_AND_WORD, ICRC_LENGTH, Outgoing, PSN_MASK
from txrdma.soft.rc.peers import PortRoute, RoutesPort, UDPPeer
from txrdma.soft.rc.routes import DatagramRoute
from txrdma.soft.shared.datagramlane import DatagramLane
from txrdma.soft.shared.datagrams import SharedDatagrams

SEEK_SECONDS: Final = 1.0
"""Seconds between attempts to open a lane to a peer."""

_LEAST: Final = FRAME + 8
_START_LENGTH: Final = START.size
_SOLICITED: Final = 1 << 55
_FIXED: Final = 0xFF << 56 | 0xF << 48 | 0x7FFF << 32
_PLAIN: Final = int(Opcode.UD_SEND_ONLY) << 56 | (int(DEFAULT_PKEY) & 0x7FFF) << 32
"""First eight bytes of the BTH of a datagram without immediate data, in the default partition."""


class LocalPeers:
    """The peers of a RoCE port on this host, with which it exchanges datagrams through shared memory."""

    def __init__(self, home: RoutesPort, lanes: SharedDatagrams, routes: Mapping[QPN, PortRoute]) -> None:
        self._home = home
        self._lanes = lanes
        self._routes = routes
        self._written: dict[DatagramLane, None] = {}

    def datagramsReceived(self, source: tuple[str, int], packets: list[memoryview]) -> None:
        """
        Process packets from a lane, from BTH to ICRC.

        Fast path: plain datagrams for a known queue pair skip the general dispatch. This saves a tenth of the
        processor time of a C{btl:} round trip of 64 bytes on one host.
        """
        home = self._home
        peer = home.localPeerAt(source)
        if peer is None:
            return
        routes, unpack = self._routes, START.unpack_from
        number = -1
        taken = octets = 0
        route: PortRoute | None = None
        for packet in packets:
            size = len(packet)
            if size >= _LEAST and not size & 3:
                head, _psn, qkey, sender = unpack(packet)
                if head & 0xFFFFFF != number:  # consecutive packets often have the same destination
                    number = head & 0xFFFFFF
                    route = routes.get(QPN(number))
                end = size - ICRC_LENGTH - (head >> 52 & 3)
                if head & _FIXED == _PLAIN and isinstance(route, DatagramRoute) and end >= _START_LENGTH:
                    taken += 1
                    octets += size
                    payload, isSolicited = packet[_START_LENGTH:end], head & _SOLICITED != 0
                    inbox = route.inbox
                    try:
                        if inbox is not None:
                            route.datagrams.hold(inbox, payload, qkey, sender, peer.source, isSolicited)
                            continue
                        header = peer.grh if peer.grhLength == size else home.grhFor(peer, size)
                        route.take(payload, qkey, sender, header, isSolicited)
                    except Exception:
                        home.fail(route)
                        number = -1
                    continue
            home.packetReceived(packet, peer, home.seconds())
            number = -1
        home.counters.packetsReceived += taken
        home.counters.bytesReceived += octets

    def laneTo(self, peer: UDPPeer, number: int) -> DatagramLane | None:
        """Return the lane to a peer's device, if it is up; otherwise request one, at intervals."""
        if number == MULTICAST_QPN:  # of all devices
            return None
        if peer.port == ROCE_PORT and peer.lane is None:  # which several devices may share
            port = portOfQueuePair(number)
            sharing = None if port is None else self._home.peerNamed(peer.ip, port)
            if sharing is not None:
                lane = self.laneTo(sharing, number)
                if lane is not None or sharing.lane is not None:
                    return lane
        lane = peer.lane
        if lane is not None and not lane.isClosed:
            return lane if lane.isUp else None
        now = self._home.seconds()
        if now >= peer.seekAt:
            peer.seekAt = now + SEEK_SECONDS
            peer.lane = self._lanes.laneTo((peer.ip, peer.port))
        return None

    def write(self, lane: DatagramLane, heading: int, run: Outgoing) -> None:
        """Write one packet with this C{heading} of the BTH; it is lost when the ring is full."""
        opcode, psn, _packets, extension, payload, _size, _acknowledge, solicited = run
        pad = -(len(extension) + len(payload)) & 3
        head = opcode << 56 | solicited << 55 | pad << 52 | heading
        start = HEAD_AND_WORD.pack(head, psn & PSN_MASK) + extension
        packet = memoryview(b"".join((start, payload, bytes(pad + ICRC_LENGTH))))
        lane.put((packet,), len(packet))
        self._written[lane] = None
        self._home.wrote(1, len(packet))

    def announce(self) -> None:
        """Wake sleeping peers for written packets."""
        if self._written:
            for lane in self._written:
                lane.announce()
            self._written.clear()
