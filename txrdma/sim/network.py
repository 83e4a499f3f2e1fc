"""
A simulated network of software devices, which loses, duplicates, delays, reorders and corrupts datagrams.

A seed determines the faults. The network replaces only UDP sockets, so the code above them is tested::

    clock = task.Clock()
    network = SimulatedNetwork(clock, seed=1, faults=Faults(loss=0.1))
    alice, bob = network.device("10.0.0.1"), network.device("10.0.0.2")
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from random import Random
from typing import Final

from twisted.internet.interfaces import IReactorTime

from txrdma.iba.pcap import RoCECapture
from txrdma.iba.roce import RoCEPacket
from txrdma.iba.types import MTU, ROCE_PORT
from txrdma.soft.device import SoftDevice
from txrdma.soft.ports import SoftPort
from txrdma.soft.rc.roce import RoCEPort
from txrdma.soft.rc.udp import ANSWERED, DatagramHandler, RawAddress

_SEGMENTS: Final = 16

RECEIVE_BUFFER: Final = 212992
"""Size of a socket's receive buffer in bytes: net.core.rmem_default of Linux."""


@dataclass(frozen=True)
class Faults:
    """
    Faults of a simulated network; probabilities are for one datagram.

    @ivar delaySeconds: minimum delay of a datagram.
    @ivar jitterSeconds: maximum of the random addition to the delay. Datagrams sent within a shorter time may
        overtake each other.
    @ivar corruption: probability that a datagram is changed so that UDP's checksum does not detect it.
    @ivar late: probability that a datagram takes up to C{lateSeconds} more, long after its retransmission.
    @ivar merging: probability that datagrams of one send arrive together.
    @ivar congestion: probability that the sender has to wait before the next send.
    """

    loss: float = 0.0
    duplication: float = 0.0
    corruption: float = 0.0
    late: float = 0.0
    delaySeconds: float = 10e-6
    jitterSeconds: float = 0.0
    lateSeconds: float = 0.3
    merging: float = 1.0
    congestion: float = 0.0


FAIR: Final = Faults()

_64_BITS: Final = (1 << 64) - 1


class _Question(IntEnum):
    """Random decisions about a datagram."""

    LOSS = 1
    CORRUPTION = 2
    SPOILT_WORDS = 3
    LATE = 4
    LATE_SECONDS = 5
    DUPLICATION = 6
    DUPLICATE_SECONDS = 7
    MERGING = 8
    JITTER = 9
    CONGESTION = 10


class _Direction:
    """
    Random decisions about the datagrams from one address to another.

    A decision depends only on the seed, the addresses, the question and the number of the datagram. An
    additional packet in one direction does not affect the other.

    @ivar sent: number of datagrams so far.
    @ivar attempts: number of sends so far, including those that congestion prevented.
    """

    def __init__(self, seed: int, source: str, destination: str) -> None:
        self._key = Random(f"{seed} {source} {destination}").getrandbits(64)
        self.sent = self.attempts = 0

    def bits(self, question: _Question, number: int) -> int:
        """Return 64 random bits for a question about the datagram of that number, by SplitMix64."""
        bits = self._key + ((number << 4) + question) * 0x9E3779B97F4A7C15 & _64_BITS
        bits = (bits ^ bits >> 30) * 0xBF58476D1CE4E5B9 & _64_BITS
        bits = (bits ^ bits >> 27) * 0x94D049BB133111EB & _64_BITS
        return bits ^ bits >> 31

    def part(self, question: _Question, number: int) -> float:
        """Return a random number from 0 to 1 for a question about the datagram of that number."""
        return self.bits(question, number) / (1 << 64)

    def happens(self, question: _Question, number: int, probability: float) -> bool:
        """Return whether a fault of this probability happens to the datagram of that number."""
        return probability > 0 and self.part(question, number) < probability


class _Filter:
    """Packets to drop intentionally, and their number."""

    def __init__(self, matches: Callable[[RoCEPacket], bool], times: int) -> None:
        self.matches = matches
        self.times = times


class SimulatedNetwork:
    """
    Network of simulated hosts, which connects L{SimulatedCarrier}s.

    @ivar faults: faults of all datagrams; may be changed at any time.
    @ivar faultsOf: faults by sending address, which override C{faults}.
    @ivar sent: number of all datagrams.
    @ivar dropped: number of datagrams that did not arrive.
    """

    def __init__(self, clock: IReactorTime, seed: int = 0, faults: Faults = FAIR) -> None:
        self.clock = clock
        self.faults = faults
        self._seed = seed
        self._directions: dict[tuple[str, str], _Direction] = {}
        self.faultsOf: dict[str, Faults] = {}
        self.sent = self.dropped = 0
        self._carriers: dict[tuple[str, int], SimulatedCarrier] = {}
        self._members: dict[str, list[SimulatedCarrier]] = {}
        self._cut: set[frozenset[str]] = set()
        self._filters: list[_Filter] = []

    def carrier(self, address: str, port: int | None = None, segments: int = _SEGMENTS) -> SimulatedCarrier:
        """Return a simulated UDP socket of an address, by default on the first free port from RoCE's on."""
        if port is None:
            port = ROCE_PORT
            while (address, port) in self._carriers:
                port += 1
        if (address, port) in self._carriers:
            raise ValueError(f"{address} port {port} is taken")
        carrier = self._carriers[address, port] = SimulatedCarrier(self, address, port, segments)
        return carrier

    def memberCarrier(self, group: str) -> SimulatedCarrier:
        """Return a new simulated UDP socket that is a member of an IP multicast group."""
        member = SimulatedCarrier(self, group, ROCE_PORT, 1)
        self._members.setdefault(group, []).append(member)
        return member

    def device(
        self,
        *addresses: str,
        mtu: MTU | None = None,
        capture: RoCECapture | None = None,
        segments: int = _SEGMENTS,
        longestDatagram: int = 0,
    ) -> SoftDevice:
        """Return a software device of a host, with one port for each address."""
        longest = longestDatagram or (mtu or MTU.MTU_1024).bytes
        ports = []
        for address in addresses:
            carrier = self.carrier(address, segments=segments)
            route = RoCEPort(self.clock, carrier, capture, longest)
            ports.append(SoftPort(address, carrier.port, [route], mtu, longestDatagram=longestDatagram))
        return SoftDevice(self.clock, ports, name=f"sim:{','.join(addresses)}")

    def reseed(self, seed: int) -> None:
        """Use another seed for all random decisions from now on."""
        self._seed = seed
        self._directions.clear()

    def partition(self, one: str, other: str) -> None:
        """Lose all datagrams between these two addresses from now on, until L{join} or L{heal}."""
        self._cut.add(frozenset((one, other)))

    def join(self, one: str, other: str) -> None:
        """End the partition between these two addresses, if there is one."""
        self._cut.discard(frozenset((one, other)))

    def heal(self) -> None:
        """End all partitions of the network."""
        self._cut.clear()

    def sleep(self, *addresses: str) -> None:
        """Stop the processes of a host with these addresses from reading until L{wake}."""
        for carrier in self._at(addresses):
            carrier.sleep()

    def wake(self, *addresses: str) -> None:
        """Let the processes of a host with these addresses read again, first datagrams that have arrived."""
        for carrier in self._at(addresses):
            carrier.wake()

    def _at(self, addresses: Sequence[str]) -> list[SimulatedCarrier]:
        return [carrier for (ip, _port), carrier in self._carriers.items() if ip in addresses]

    def drop(self, matches: Callable[[RoCEPacket], bool], times: int = 1) -> None:
        """Drop the next packets for which C{matches} returns True, at most C{times} of them."""
        self._filters.append(_Filter(matches, times))

    # For carriers.

    def faultsFor(self, source: SimulatedCarrier) -> Faults:
        """Return the faults of datagrams that this carrier sends."""
        return self.faultsOf.get(source.address, self.faults)

    def carry(self, data: bytes, segment: int, source: SimulatedCarrier, destination: RawAddress) -> None:
        """Carry the datagrams of one send, with the network's faults."""
        ip, port = destination[0], destination[1]
        faults, direction = self.faultsFor(source), self._direction(source, ip)
        pieces = [data[at : at + segment] for at in range(0, len(data), segment)]
        first = direction.sent
        self.sent += len(pieces)
        direction.sent += len(pieces)
        if frozenset((source.address, ip)) in self._cut:
            self.dropped += len(pieces)
            return
        arriving: list[tuple[bytes, float]] = []
        for number, piece in enumerate(pieces, first):
            if self._filtered(piece) or direction.happens(_Question.LOSS, number, faults.loss):
                self.dropped += 1
                continue
            if direction.happens(_Question.CORRUPTION, number, faults.corruption):
                piece = _corrupted(piece, Random(direction.bits(_Question.SPOILT_WORDS, number)))
            seconds = faults.delaySeconds
            if faults.jitterSeconds:
                seconds += faults.jitterSeconds * direction.part(_Question.JITTER, number)
            if direction.happens(_Question.LATE, number, faults.late):
                late = faults.lateSeconds * direction.part(_Question.LATE_SECONDS, number)
                self._deliver(piece, segment, source, (ip, port), seconds + late)
            else:
                arriving.append((piece, seconds))
            if direction.happens(_Question.DUPLICATION, number, faults.duplication):
                more = faults.jitterSeconds * direction.part(_Question.DUPLICATE_SECONDS, number)
                self._deliver(piece, segment, source, (ip, port), seconds + more)
        # A system merges datagrams of one length even if one between them is missing.
        if arriving and direction.happens(_Question.MERGING, first, faults.merging):
            whole = b"".join([piece for piece, _ in arriving])
            self._deliver(whole, segment, source, (ip, port), arriving[0][1])
        else:
            for piece, seconds in arriving:
                self._deliver(piece, segment, source, (ip, port), seconds)

    def isCongested(self, source: SimulatedCarrier, destination: RawAddress) -> bool:
        """Return whether a send from this carrier to this address has to wait."""
        direction = self._direction(source, destination[0])
        direction.attempts += 1
        return direction.happens(_Question.CONGESTION, direction.attempts, self.faultsFor(source).congestion)

    def _direction(self, source: SimulatedCarrier, destination: str) -> _Direction:
        key = source.address, destination
        if key not in self._directions:
            self._directions[key] = _Direction(self._seed, *key)
        return self._directions[key]

    def forget(self, carrier: SimulatedCarrier) -> None:
        """Remove a carrier that was closed."""
        members = self._members.get(carrier.address, [])
        if carrier in members:
            members.remove(carrier)
        else:
            self._carriers.pop((carrier.address, carrier.port), None)

    def _filtered(self, piece: bytes) -> bool:
        for filter_ in self._filters:
            if filter_.matches(RoCEPacket.decode(piece)):
                filter_.times -= 1
                if filter_.times == 0:
                    self._filters.remove(filter_)
                return True
        return False

    def _deliver(
        self,
        data: bytes,
        segment: int,
        source: SimulatedCarrier,
        destination: tuple[str, int],
        seconds: float,
    ) -> None:
        def arrive() -> None:
            carrier = self._carriers.get(destination)
            for each in [carrier] if carrier is not None else list(self._members.get(destination[0], ())):
                each.arrived(data, segment, (source.address, source.port))

        self.clock.callLater(seconds, arrive)


def _corrupted(piece: bytes, random: Random) -> bytes:
    """Exchange two different words of a datagram, which UDP's checksum does not detect, but the ICRC."""
    words = [piece[at : at + 2] for at in range(0, len(piece), 2)]
    if len(set(words)) == 1:
        return piece
    one = other = 0
    while words[one] == words[other]:
        one, other = random.sample(range(len(words)), 2)
    words[one], words[other] = words[other], words[one]
    return b"".join(words)


class SimulatedCarrier:
    """A UDP socket of a L{SimulatedNetwork}: see L{txrdma.soft.rc.udp.DatagramCarrier}."""

    merges = isLive = False

    def __init__(self, network: SimulatedNetwork, address: str, port: int, segments: int) -> None:
        self.address = address
        self.port = port
        self.segments = segments
        self.receiveBuffer = RECEIVE_BUFFER
        self._network = network
        self._received: DatagramHandler | None = None  # once started
        self._waiting = False
        self._isAsleep = False
        self._unread: list[tuple[bytes, int, tuple[str, int]]] = []

    def start(
        self, received: DatagramHandler, batchEnded: Callable[[], None], writable: Callable[[], None]
    ) -> None:
        """Start receiving datagrams: see L{txrdma.soft.rc.udp.DatagramCarrier.start}."""
        self._received, self._batchEnded, self._writable = received, batchEnded, writable

    def send(self, data: memoryview, segment: int, destination: RawAddress, trafficClass: int = 0) -> bool:
        """Send datagrams of C{segment} bytes each; the last may be shorter. The class is not transmitted."""
        network = self._network
        if self._waiting:
            return False
        if network.isCongested(self, destination):
            self._waiting = True
            network.clock.callLater(network.faultsFor(self).delaySeconds, self._ready)
            return False
        network.carry(bytes(data), segment, self, destination)
        return True

    def rawAddress(self, ip: str, port: int) -> RawAddress | None:
        """Return the address of a peer for L{send}; None if it is of the other IP version."""
        return None if (":" in ip) != (":" in self.address) else (ip, port)

    def poll(self) -> None:
        """Do nothing: the network delivers datagrams at their times."""

    def joined(self, group: str) -> SimulatedCarrier:
        """Return a carrier that receives the datagrams to an IP multicast group."""
        return self._network.memberCarrier(group)

    def close(self) -> None:
        """Close the socket; datagrams for it are lost from now on."""
        self._received = None
        self._network.forget(self)

    def sleep(self) -> None:
        """Stop reading: the buffer fills, and datagrams beyond it are lost."""
        self._isAsleep = True

    def wake(self) -> None:
        """Resume reading, first of datagrams that have arrived meanwhile, several at a time."""
        self._isAsleep = False
        unread, self._unread = self._unread, []
        for begin in range(0, len(unread), ANSWERED):
            self._arrived(unread[begin : begin + ANSWERED])

    def arrived(self, data: bytes, segment: int, source: tuple[str, int]) -> None:
        """Receive datagrams from the network."""
        if not self._isAsleep:
            self._arrived([(data, segment, source)])
        elif sum([len(waiting) for waiting, _, _ in self._unread]) < RECEIVE_BUFFER:
            self._unread.append((data, segment, source))
        else:
            self._network.dropped += -(-len(data) // segment)

    def _arrived(self, together: Sequence[tuple[bytes, int, tuple[str, int]]]) -> None:
        for data, segment, source in together:
            if self._received is not None:
                self._received(memoryview(data), segment, source, 0)
        if self._received is not None:
            self._batchEnded()

    def _ready(self) -> None:
        self._waiting = False
        if self._received is not None:
            self._writable()
