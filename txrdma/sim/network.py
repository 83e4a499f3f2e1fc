"""
A network between software devices that loses, doubles, delays, reorders and spoils, by a seed, on a clock.

It takes the place of UDP sockets, so everything above them is the real thing::

    clock = task.Clock()
    network = SimulatedNetwork(clock, seed=1, faults=Faults(loss=0.1))
    alice, bob = network.device("10.0.0.1"), network.device("10.0.0.2")
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

from twisted.internet.interfaces import IReactorTime

from txrdma.iba.pcap import RoCECapture
from txrdma.iba.roce import RoCEPacket
from txrdma.iba.types import MTU, ROCE_PORT
from txrdma.soft.device import SoftDevice
from txrdma.soft.ports import SoftPort
from txrdma.soft.rc.roce import RoCEPort
from txrdma.soft.rc.udp import ANSWERED, RawAddress, Receiver

_SEGMENTS: Final = 16

RECEIVE_BUFFER: Final = 212992
"""Bytes that wait in a socket for their process: net.core.rmem_default of Linux."""


@dataclass(frozen=True)
class Faults:
    """
    Faults of a simulated network; probabilities are for one datagram.

    @ivar delaySeconds: shortest time that a datagram takes.
    @ivar jitterSeconds: most that chance adds to that. Datagrams sent within a shorter time may overtake each
        other.
    @ivar corruption: probability that a datagram is changed so that UDP's checksum does not show it.
    @ivar late: probability that a datagram takes up to C{lateSeconds} more, long after it was sent again.
    @ivar merging: probability that datagrams which were sent at once arrive at once.
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


class _Filter:
    """Packets to be lost on purpose, and how many of them."""

    def __init__(self, matches: Callable[[RoCEPacket], bool], times: int) -> None:
        self.matches = matches
        self.times = times


class SimulatedNetwork:
    """
    Network of simulated hosts, which connects L{SimulatedCarrier}s.

    @ivar faults: may be changed at any time.
    @ivar faultsOf: faults of what an address sends, in the place of these.
    @ivar dropped: datagrams that did not arrive; C{sent} counts all.
    """

    def __init__(self, clock: IReactorTime, seed: int = 0, faults: Faults = FAIR) -> None:
        self.clock = clock
        self.random = Random(seed)
        self.faults = faults
        self.faultsOf: dict[str, Faults] = {}
        self.sent = self.dropped = 0
        self._carriers: dict[tuple[str, int], SimulatedCarrier] = {}
        self._cut: set[frozenset[str]] = set()
        self._filters: list[_Filter] = []

    def carrier(self, address: str, port: int | None = None, segments: int = _SEGMENTS) -> SimulatedCarrier:
        """A socket of a host of that address; on the next free port, beginning with RoCE's."""
        if port is None:
            port = ROCE_PORT
            while (address, port) in self._carriers:
                port += 1
        if (address, port) in self._carriers:
            raise ValueError(f"{address} port {port} is taken")
        carrier = self._carriers[address, port] = SimulatedCarrier(self, address, port, segments)
        return carrier

    def device(
        self,
        *addresses: str,
        mtu: MTU | None = None,
        capture: RoCECapture | None = None,
        segments: int = _SEGMENTS,
    ) -> SoftDevice:
        """A software device of a host with these addresses: each is a port of its own."""
        ports = []
        for address in addresses:
            carrier = self.carrier(address, segments=segments)
            route = RoCEPort(self.clock, carrier, capture, mtu or MTU.MTU_1024)
            ports.append(SoftPort(address, carrier.port, [route], mtu))
        return SoftDevice(self.clock, ports, name=f"sim:{','.join(addresses)}")

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
        """Let processes of a host with these addresses be busy, and read nothing until L{wake}."""
        for carrier in self._at(addresses):
            carrier.sleep()

    def wake(self, *addresses: str) -> None:
        """Let processes of a host with these addresses go on, and read what has come meanwhile."""
        for carrier in self._at(addresses):
            carrier.wake()

    def _at(self, addresses: Sequence[str]) -> list[SimulatedCarrier]:
        return [carrier for (ip, _port), carrier in self._carriers.items() if ip in addresses]

    def drop(self, matches: Callable[[RoCEPacket], bool], times: int = 1) -> None:
        """Lose the next packets for which C{matches} is true, at most C{times} of them."""
        self._filters.append(_Filter(matches, times))

    # For carriers.

    def carry(self, data: bytes, segment: int, source: SimulatedCarrier, destination: RawAddress) -> None:
        """Carry the datagrams of one send, with the network's faults."""
        ip, port = destination[0], destination[1]
        faults, random = self.faultsOf.get(source.address, self.faults), self.random
        pieces = [data[at : at + segment] for at in range(0, len(data), segment)]
        self.sent += len(pieces)
        if frozenset((source.address, ip)) in self._cut:
            self.dropped += len(pieces)
            return
        arriving: list[bytes] = []
        for piece in pieces:
            if self._filtered(piece) or random.random() < faults.loss:
                self.dropped += 1
                continue
            if random.random() < faults.corruption:
                piece = self._spoilt(piece)
            if random.random() < faults.late:
                self._deliver(piece, segment, source, (ip, port), faults.lateSeconds * random.random())
            else:
                arriving.append(piece)
            if random.random() < faults.duplication:
                self._deliver(piece, segment, source, (ip, port), faults.jitterSeconds * random.random())
        # A system merges what is of one length, whether something is missing between or not.
        if arriving and random.random() < faults.merging:
            self._deliver(b"".join(arriving), segment, source, (ip, port))
        else:
            for piece in arriving:
                self._deliver(piece, segment, source, (ip, port))

    def forget(self, carrier: SimulatedCarrier) -> None:
        """Remove a carrier that was closed."""
        self._carriers.pop((carrier.address, carrier.port), None)

    def _spoilt(self, piece: bytes) -> bytes:
        """
        Spoil a datagram by exchanging two words: UDP's checksum would not see it, so the ICRC must.

        The words differ, and finding them takes as much of the seed whatever the packet holds: keys are
        random.
        """
        random = Random(self.random.getrandbits(64))
        words = [piece[at : at + 2] for at in range(0, len(piece), 2)]
        one = other = 0
        while words[one] == words[other]:
            one, other = random.sample(range(len(words)), 2)
        words[one], words[other] = words[other], words[one]
        return b"".join(words)

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
        moreSeconds: float = 0.0,
    ) -> None:
        faults = self.faultsOf.get(source.address, self.faults)
        delay = faults.delaySeconds + faults.jitterSeconds * self.random.random() + moreSeconds

        def arrive() -> None:
            carrier = self._carriers.get(destination)
            if carrier is not None:
                carrier.arrived(data, segment, (source.address, source.port))

        self.clock.callLater(delay, arrive)


class SimulatedCarrier:
    """A UDP socket of a L{SimulatedNetwork}: see L{txrdma.soft.rc.udp.Carrier}."""

    merges = isLive = False

    def __init__(self, network: SimulatedNetwork, address: str, port: int, segments: int) -> None:
        self.address = address
        self.port = port
        self.segments = segments
        self._network = network
        self._receiver: Receiver | None = None
        self._waiting = False
        self._isAsleep = False
        self._unread: list[tuple[bytes, int, tuple[str, int]]] = []

    def start(self, receiver: Receiver) -> None:
        """Start handing datagrams to a receiver."""
        self._receiver = receiver

    def send(self, data: memoryview, segment: int, destination: RawAddress) -> bool:
        """Send datagrams of C{segment} bytes each; the last may be shorter."""
        network = self._network
        if self._waiting:
            return False
        if network.faults.congestion and network.random.random() < network.faults.congestion:
            self._waiting = True
            network.clock.callLater(network.faults.delaySeconds, self._ready)
            return False
        network.carry(bytes(data), segment, self, destination)
        return True

    def rawAddress(self, ip: str, port: int) -> RawAddress | None:
        """Address of a peer for L{send}; None if it is of the other IP version."""
        return None if (":" in ip) != (":" in self.address) else (ip, port)

    def look(self) -> None:
        """Do nothing: the network brings datagrams when their time has come."""

    def close(self) -> None:
        """Close the socket; datagrams for it are lost from now on."""
        self._receiver = None
        self._network.forget(self)

    def sleep(self) -> None:
        """Let the process be busy, and read nothing: the buffer fills, and datagrams beyond it are lost."""
        self._isAsleep = True

    def wake(self) -> None:
        """Let the process read what has come meanwhile, several datagrams in each turn."""
        self._isAsleep = False
        unread, self._unread = self._unread, []
        for begin in range(0, len(unread), ANSWERED):
            self._arrived(unread[begin : begin + ANSWERED])

    def arrived(self, data: bytes, segment: int, source: tuple[str, int]) -> None:
        """Take datagrams that the network delivers."""
        if not self._isAsleep:
            self._arrived([(data, segment, source)])
        elif sum([len(waiting) for waiting, _, _ in self._unread]) < RECEIVE_BUFFER:
            self._unread.append((data, segment, source))
        else:
            self._network.dropped += -(-len(data) // segment)

    def _arrived(self, together: Sequence[tuple[bytes, int, tuple[str, int]]]) -> None:
        for data, segment, source in together:
            if self._receiver is not None:
                self._receiver.received(memoryview(data), segment, source)
        if self._receiver is not None:
            self._receiver.turnEnded()

    def _ready(self) -> None:
        self._waiting = False
        if self._receiver is not None:
            self._receiver.writable()
