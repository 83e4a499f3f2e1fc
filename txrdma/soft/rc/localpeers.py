"""
Packets of a RoCE port that need no network: datagrams to devices of this host with which it shares memory.

The packets are the same as by UDP and are counted as such, but have no ICRC.
"""

from __future__ import annotations

from collections.abc import Mapping
from struct import Struct
from typing import Final, Protocol

from txrdma.iba.headers import Opcode
from txrdma.iba.types import DEFAULT_PKEY, QPN
from txrdma.soft.rc._datagram import START
from txrdma.soft.rc._packets import FRAME, ICRC_LENGTH, Outgoing, PSN_MASK
from txrdma.soft.rc.counters import RoCECounters
from txrdma.soft.rc.peers import Peer, PortRoute
from txrdma.soft.rc.routes import DatagramRoute
from txrdma.soft.shared.datagramlane import DatagramLane
from txrdma.soft.shared.datagrams import SharedDatagrams

SEEK_SECONDS: Final = 1.0
"""Seconds after which a lane to a peer is sought again, when there was none or it has ended."""

_QUIET: Final = 64
_SELDOM: Final = 16

_HEAD_AND_WORD: Final = Struct(">QI")
_LEAST: Final = FRAME + 8
_START_LENGTH: Final = START.size
_SOLICITED: Final = 1 << 55
_FIXED: Final = 0xFF << 56 | 0xF << 48 | 0x7FFF << 32
_PLAIN: Final = int(Opcode.UD_SEND_ONLY) << 56 | (int(DEFAULT_PKEY) & 0x7FFF) << 32
"""A datagram without an immediate, of the version and the partition that there are."""


class PacketPort(Protocol):
    """The RoCE port whose neighbours they are."""

    counters: RoCECounters

    def seconds(self) -> float:
        """The time by the port's clock."""

    def neighbourCame(self, source: tuple[str, int]) -> Peer | None:
        """The device of this host from which packets are here; None where they are not to be taken."""

    def packetCame(self, packet: memoryview, peer: Peer, now: float) -> None:
        """Take one packet of a device of this host, of whatever sort."""

    def grhFor(self, peer: Peer, length: int) -> bytes:
        """The 40 bytes before a datagram of so many bytes."""

    def wrote(self, packets: int, size: int) -> None:
        """Count packets that went by a lane: together they have C{size} bytes."""

    def fail(self, route: PortRoute) -> None:
        """End a route on whose behalf something has raised, which costs nobody else anything."""


class LocalPeers:
    """The peers of a RoCE port on this host: it looks for lanes to them, writes and takes packets there."""

    def __init__(self, home: PacketPort, lanes: SharedDatagrams, routes: Mapping[QPN, PortRoute]) -> None:
        """
        @param routes: the port's, by their queue pairs' numbers.
        """
        self._home = home
        self._lanes = lanes
        self._routes = routes
        self._written: dict[DatagramLane, None] = {}
        self._quiet = 0  # looks since UDP has brought something

    def datagramsCame(self, source: tuple[str, int], packets: list[memoryview]) -> None:
        """
        Take packets that a device of this host has written, from BTH to ICRC.

        The hot loop of receiving: nearly all are plain datagrams for a queue pair that there is.
        """
        home = self._home
        peer = home.neighbourCame(source)
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
                if head & 0xFFFFFF != number:  # many of one queue pair follow each other
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
                            route.datagrams.hold(inbox.hold, payload, qkey, sender, peer.source, isSolicited)
                            continue
                        header = peer.grh if peer.grhLength == size else home.grhFor(peer, size)
                        route.take(payload, qkey, sender, header, isSolicited)
                    except Exception:
                        home.fail(route)
                        number = -1
                    continue
            home.packetCame(packet, peer, home.seconds())
            number = -1
        home.counters.packetsReceived += taken
        home.counters.bytesReceived += octets

    def laneTo(self, peer: Peer) -> DatagramLane | None:
        """The lane to that peer, if it is up; else it is sought now and then."""
        lane = peer.lane
        if lane is not None and not lane.isClosed:
            return lane if lane.isUp else None
        now = self._home.seconds()
        if now >= peer.seekAt:
            peer.seekAt = now + SEEK_SECONDS
            peer.lane = self._lanes.laneTo((peer.ip, peer.port))
        return None

    def write(self, lane: DatagramLane, heading: int, run: Outgoing) -> None:
        """
        Write one packet of whatever sort; what finds no room is lost.

        @param heading: see L{txrdma.soft.rc._packets.heading}.
        """
        opcode, psn, _packets, extension, payload, _size, _acknowledge, solicited = run
        pad = -len(payload) & 3
        head = opcode << 56 | solicited << 55 | pad << 52 | heading
        start = _HEAD_AND_WORD.pack(head, psn & PSN_MASK) + extension
        packet = memoryview(b"".join((start, payload, bytes(pad + ICRC_LENGTH))))
        lane.put((packet,), len(packet))
        self._written[lane] = None
        self._home.wrote(1, len(packet))

    def announce(self) -> None:
        """Wake those who sleep, for what was written."""
        if self._written:
            for lane in self._written:
                lane.announce()
            self._written.clear()

    def look(self) -> None:
        """Take what has come by shared memory."""
        if self._lanes.isOpen:
            self._lanes.poll()

    def isSocketDue(self) -> bool:
        """
        Tell whether to look at the socket, which takes a system call.

        Where all seem to come by memory it is left to the reactor, mostly. Else the socket is looked at
        first: peers change from UDP to memory, and so their datagrams keep their order.
        """
        self._quiet += 1
        return not self._lanes.isOpen or self._quiet < _QUIET or not self._quiet % _SELDOM

    def arm(self) -> None:
        """Have peers wake the reactor for what they write from now on; look once more after this."""
        if self._lanes.isOpen:
            self._lanes.arm()

    def cameByUDP(self) -> None:
        """Note that something has come by the socket, which is worth looking at."""
        self._quiet = 0
