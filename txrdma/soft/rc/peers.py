"""
Whom a RoCE port exchanges datagrams with, and what the port and the routes on it ask of each other.

Here is what of the ICRC depends on the two ends only (annex A17 of the InfiniBand Architecture vol. 1).
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Final, Protocol

from txrdma.iba.internet import checksummed, ipHeaders, packedIP, UDP
from txrdma.iba.roce import Flow, IDENTIFICATION_CHANGES
from txrdma.iba.types import QPN
from txrdma.iba.verbs import AddressVector
from txrdma.soft.rc._datagram import GRH_LENGTH
from txrdma.soft.rc._packets import Incoming, Outgoing
from txrdma.soft.rc.udp import ipAndPort, RawAddress
from txrdma.soft.shared.datagramlane import DatagramLane

_NO_CHANGES: Final = (0,) * len(IDENTIFICATION_CHANGES)
_LENGTHS: Final = 64


class RoutesPort(Protocol):
    """
    The RoCE port, as the routes on it see it.

    @ivar siblings: this and the other ports of the device, by their numbers.
    @ivar isEnabled: while it is not, nothing goes out and nothing comes in.
    @ivar isLive: whether L{look} finds what has come this moment.
    """

    address: str
    port: int
    isEnabled: bool
    isLive: bool

    @property
    def siblings(self) -> Mapping[int, RoutesPort]: ...
    @property
    def batch(self) -> int: ...
    @property
    def mtu(self) -> int: ...

    def seconds(self) -> float:
        """The time by the port's clock, in seconds."""

    def look(self) -> None:
        """Take the packets that have come, before the reactor finds them."""

    def arm(self) -> None:
        """Have the reactor woken by what comes from now on; look once more after this."""

    def register(self, route: PortRoute) -> None:
        """Packets for the route's queue pair number belong to the route from now on."""

    def forget(self, route: PortRoute) -> None:
        """Forget a route that is closed: no packet reaches it any more."""

    def release(self, route: PortRoute) -> None:
        """The route sends by another port from now on, but still listens here."""

    def peerAt(self, address: AddressVector) -> Peer | None:
        """The peer at the end of that path; None where the IP family differs."""

    def turn(self, route: PortRoute) -> None:
        """Send what the route has to send, deliver its events, look after its deadline: soon."""

    def serve(self, route: PortRoute, now: float) -> None:
        """Send what the route has to send, deliver its events, look after its deadline: at once."""

    def emit(self, peer: Peer, heading: int, run: Outgoing) -> None:
        """Send packets, within a turn."""

    def emitDatagram(self, peer: Peer, heading: int, run: Outgoing) -> None:
        """Send one packet that may be lost, within a turn: by shared memory, where that is shared."""

    def directLaneTo(self, address: AddressVector) -> DatagramLane | None:
        """The lane to the end of that way, where what is written there concerns nobody but its taker."""

    def wrote(self, packets: int, size: int) -> None:
        """Count packets that went by a lane: together they have C{size} bytes."""

    def emitNow(self, peer: Peer, heading: int, run: Outgoing) -> None:
        """Send packets outside of a turn, when a route ends."""

    def grhFor(self, peer: Peer, length: int) -> bytes:
        """The 40 bytes before a datagram of so many bytes (GRH, or an IPv4 header in its latter half)."""


class PortRoute(Protocol):
    """
    A route, as the RoCE port that it is on sees it.

    @ivar port: the one that it sends by.
    """

    number: QPN
    port: RoutesPort

    def received(self, run: Incoming, peer: Peer, now: float) -> bool:
        """Packets for this queue pair; False when they are none of its business."""

    def transmit(self, now: float) -> bool:
        """Hand what is to be sent to the port; True when there is more for the next turn."""

    def deliver(self) -> None:
        """Tell the queue pair what has happened."""

    def deadline(self) -> float | None:
        """The time at which C{expired} is to be called."""

    def expired(self, now: float) -> None:
        """Act on the deadline, whose time has come."""

    def fail(self) -> None:
        """Log what has raised: the queue pair is of no more use."""


class Peer:
    """
    A peer that we exchange datagrams with: an address and a UDP port, as seen from a port of ours.

    @ivar at: that port of ours.
    @ivar source: its IP address as the bytes of a header.
    @ivar grh: the bytes before the last datagram that came, which had C{grhLength} bytes.
    @ivar lane: by which datagrams go to the peer, where it is on this host; sought from C{seekAt} on.
    @ivar guess: the IPv4 identification that the next datagram may have, where we can't see it.
    @ivar most: identifications below this are believed. Ours are small; those of strangers are anything,
        which leaves 16 bits of the check.
    """

    __slots__ = (
        "_sendingRuns",
        "_takingRuns",
        "at",
        "changes",
        "grh",
        "grhLength",
        "guess",
        "inbound",
        "ip",
        "lane",
        "most",
        "port",
        "raw",
        "seekAt",
        "sending",
        "source",
        "taking",
    )

    def __init__(self, raw: RawAddress, at: RoutesPort) -> None:
        self.raw = raw
        self.at = at
        self.ip, self.port = ip, port = ipAndPort(raw)
        self.source = packedIP(ip)
        here, herePort = at.address, at.port
        self.inbound = Flow(ip, port, here, herePort)
        self.taking = self.inbound.states
        self.sending = Flow(here, herePort, ip, port).states
        self.changes = _NO_CHANGES if ":" in ip else IDENTIFICATION_CHANGES
        self.guess = 0
        self.lane: DatagramLane | None = None
        self.seekAt = -inf
        self.grh, self.grhLength = b"", -1
        self.most = 65536
        self._sendingRuns: dict[int, list[int]] = {}
        self._takingRuns: dict[int, list[int]] = {}

    def makeGRH(self, length: int) -> bytes:
        """The 40 bytes before a datagram of so many bytes; IPv4's header is the latter half (annex A17)."""
        ends, ports = (packedIP(self.ip), packedIP(self.at.address)), (self.port, self.at.port)
        ip, _udp = ipHeaders(*ends, ports, length)
        raw = checksummed(ip, UDP(), b"")[: ip.size]
        self.grhLength, self.grh = length, raw.rjust(GRH_LENGTH, b"\0")
        return self.grh

    def sendingStates(self, length: int) -> list[int]:
        """For datagrams of this length that are sent at once, what their ICRC starts from."""
        states = self._sendingRuns.get(length)
        if states is None:
            states = self._sendingRuns[length] = [self.sending[length] ^ change for change in self.changes]
        return states

    def takingStates(self, length: int) -> list[int]:
        """For datagrams of this length that come at once, what their ICRC starts from."""
        states = self._takingRuns.get(length)
        if states is None:
            if len(self._takingRuns) >= _LENGTHS:
                self._takingRuns.clear()
            states = self._takingRuns[length] = [self.taking[length] ^ change for change in self.changes]
        return states
