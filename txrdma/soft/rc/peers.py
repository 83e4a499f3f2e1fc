"""
The peers of a RoCE port, the base of its routes, and the interface of the port for them.

A peer has the parts of the ICRC that depend on the two addresses only (annex A17 of the InfiniBand
Architecture vol. 1).
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from math import inf
from typing import Final, Protocol

from txrdma.iba.internet import checksummed, ipHeaders, IPv4, packedIP, UDP
from txrdma.iba.roce import crc32, IDENTIFICATION_CHANGES, RESIDUE, UDPFlow
from txrdma.iba.types import QPN
from txrdma.iba.verbs import AddressVector
from txrdma.soft.rc._datagram import GRH_LENGTH
from txrdma.soft.rc._packets import Incoming, Outgoing
from txrdma.soft.rc.counters import RoCECounters
from txrdma.soft.rc.udp import ipAndPort, RawAddress
from txrdma.soft.shared.datagramlane import DatagramLane

_NO_CHANGES: Final = (0,) * len(IDENTIFICATION_CHANGES)
_LENGTHS: Final = 64


class RoutesPort(Protocol):
    """
    The interface of L{RoCEPort <txrdma.soft.rc.roce.RoCEPort>} for its routes, which it makes.

    @ivar siblings: this and the other ports of the device, by their numbers.
    @ivar isEnabled: False while the port is down: nothing is sent or received.
    @ivar isLive: whether L{poll} finds packets without the reactor.
    """

    address: str
    port: int
    isEnabled: bool
    isLive: bool
    counters: RoCECounters
    longestDatagram: int

    @property
    def siblings(self) -> Mapping[int, RoutesPort]: ...
    @property
    def mostInFlight(self) -> int: ...
    def batch(self, mtu: int) -> int: ...
    def seconds(self) -> float: ...
    def poll(self) -> None: ...
    def arm(self) -> None: ...
    def register(self, route: PortRoute) -> None: ...
    def forget(self, route: PortRoute) -> None: ...
    def release(self, route: PortRoute) -> None: ...
    def peerAt(self, address: AddressVector) -> UDPPeer | None: ...
    def turn(self, route: PortRoute) -> None: ...
    def serve(self, route: PortRoute, now: float) -> None: ...
    def emit(self, peer: UDPPeer, heading: int, run: Outgoing) -> None: ...
    def emitDatagram(self, peer: UDPPeer, heading: int, run: Outgoing) -> None: ...
    def directLaneTo(self, address: AddressVector, number: int) -> DatagramLane | None: ...
    def wrote(self, packets: int, size: int) -> None: ...
    def emitNow(self, peer: UDPPeer, heading: int, run: Outgoing) -> None: ...
    def attach(self, route: PortRoute, group: str) -> None: ...
    def detach(self, route: PortRoute, group: str) -> None: ...
    def fail(self, route: PortRoute) -> None: ...
    def localPeerAt(self, source: tuple[str, int]) -> UDPPeer | None: ...
    def peerNamed(self, ip: str, port: int) -> UDPPeer | None: ...
    def packetReceived(self, packet: memoryview, peer: UDPPeer, now: float) -> None: ...
    def grhFor(self, peer: UDPPeer, length: int) -> bytes: ...


class PortRoute:
    """
    Base of the routes of a RoCE port.

    @ivar number: number of the queue pair; C{port}: the port.
    """

    number: QPN
    port: RoutesPort

    def received(self, run: Incoming, peer: UDPPeer, now: float) -> bool:
        """Process packets for this queue pair; False when they are not from its peer."""
        raise NotImplementedError

    def transmit(self, now: float) -> bool:
        """Emit pending packets; True when more are left for the next iteration."""
        raise NotImplementedError

    def deliver(self) -> None:
        """Deliver events to the queue pair."""
        raise NotImplementedError

    def deadline(self) -> float | None:
        """Return the time at which to call L{expired}; None without one."""
        return None

    def expired(self, now: float) -> None:
        """Handle the deadline."""
        return

    def fail(self) -> None:
        """Log the current exception, and fail the queue pair."""
        raise NotImplementedError


class UDPPeer:
    """
    An address and a UDP port with which a local port exchanges datagrams.

    @ivar at: the local port.
    @ivar source: its IP address as the bytes of a header.
    @ivar grh: the bytes before the last received datagram, which had C{grhLength} bytes.
    @ivar lane: lane for datagrams, if the peer is on this host; requested again at C{seekAt}.
    @ivar trafficClass: traffic class of packets to it; C{codepoint}: ECN field of the last received ones.
    @ivar guess: expected IPv4 identification of the next datagram, which the socket does not report.
    @ivar most: identifications below this are accepted. Software devices send small ones. Other senders use
        any, which weakens the check to 16 bits.
    """

    __slots__ = (
        "_classes",
        "_sendingRuns",
        "_takingSums",
        "at",
        "changes",
        "codepoint",
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
        "trafficClass",
    )

    def __init__(self, raw: RawAddress, at: RoutesPort) -> None:
        self.raw = raw
        self.at = at
        self.ip, self.port = ip, port = ipAndPort(raw)
        self.source = packedIP(ip)
        here, herePort = at.address, at.port
        self.inbound = UDPFlow(ip, port, here, herePort)
        self.taking = self.inbound.states
        self.sending = UDPFlow(here, herePort, ip, port).states
        self.changes = _NO_CHANGES if ":" in ip else IDENTIFICATION_CHANGES
        self.guess = self.trafficClass = self.codepoint = 0
        self.lane: DatagramLane | None = None
        self.seekAt = -inf
        self.grh, self.grhLength = b"", -1
        self.most = 65536
        self._classes: dict[int, UDPPeer] = {}
        self._sendingRuns: dict[int, list[int]] = {}
        self._takingSums: dict[int, list[int]] = {}

    def makeGRH(self, length: int) -> bytes:
        """Return the 40 bytes before a datagram of this length: a GRH, or IPv4 in the last 20 (annex A17)."""
        ends, ports = (packedIP(self.ip), packedIP(self.at.address)), (self.port, self.at.port)
        ip, _udp = ipHeaders(*ends, ports, length)
        if isinstance(ip, IPv4):
            ip = ip.replace(typeOfService=self.codepoint)
        else:
            ip = ip.replace(trafficClass=self.codepoint)
        raw = checksummed(ip, UDP(), b"")[: ip.size]
        self.grhLength, self.grh = length, raw.rjust(GRH_LENGTH, b"\0")
        return self.grh

    def inClass(self, trafficClass: int) -> UDPPeer:
        """Return the same peer for packets of a traffic class, which share no frame with others."""
        if trafficClass == self.trafficClass:
            return self
        made = self._classes.get(trafficClass)
        if made is None:
            made = self._classes[trafficClass] = copy(self)
            made.trafficClass = trafficClass
        return made

    def hasSent(self, codepoint: int) -> None:
        """Record the ECN field of the latest datagrams of this peer, for the GRH of their receives."""
        if codepoint != self.codepoint:
            self.codepoint, self.grhLength = codepoint, -1  # the GRH contains it

    def sendingStates(self, length: int) -> list[int]:
        """Return the initial ICRC states of a batch of datagrams of this length that are sent."""
        states = self._sendingRuns.get(length)
        if states is None:
            states = self._sendingRuns[length] = [self.sending[length] ^ change for change in self.changes]
        return states

    def takingSums(self, length: int, count: int) -> list[int]:
        """
        Return the CRCs of batches of received datagrams of this length whose ICRCs are right.

        A batch is checked as a whole. The first number is the initial state, the n-th after it the CRC over n
        datagrams, up to C{count}. A wrong batch has it as rarely as a wrong datagram has the right ICRC: by
        chance once in 2^32 times, and never after a single burst of up to 32 bits.
        """
        sums = self._takingSums.get(length)
        if sums is None:
            if len(self._takingSums) >= _LENGTHS:
                self._takingSums.clear()
            sums = self._takingSums[length] = [self.taking[length]]
        if len(sums) <= count:
            zeros = bytes(length)
            base = crc32(zeros, 0) ^ RESIDUE
            # CRC-32 is affine: another state before a datagram changes all after it alike.
            while len(sums) <= count:
                begin = self.taking[length] ^ self.changes[len(sums) - 1]
                sums.append(crc32(zeros, sums[-1] ^ begin) ^ base)
        return sums
