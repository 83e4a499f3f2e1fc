"""
The coordinator's information about the members of an address, and the destinations of packets.

The positions of the members' sockets are found in rounds: a probe for each position, from 0 on, with a nonce
that no member has seen before. A round begins at the start, and when a member enters or leaves. It is
repeated, at growing intervals and L{ROUNDS} times at most, until each member has reported a position, and
none of these positions can belong to another process: a process that has ended may still have its socket.
Members that have not answered are not in the filter. Processes that are stopped have sockets, too, so each
round probes one position more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from txrdma.soft.host._management import Destination

SERVICES: Final = 4096
"""The number of services that a member may serve."""

ROUNDS: Final = 10
_FIRST_ROUND: Final = 0.01
_LONGEST_ROUND: Final = 1.0


class PositionProbe(NamedTuple):
    """A packet to the socket at a position, which the receiver reports."""

    position: int
    nonce: int


class FilterChanged(NamedTuple):
    """
    Install another filter.

    @ivar positions: of sockets, by share.
    @ivar home: the coordinator's own position; while that is unknown, a member's, which forwards to it.
    """

    positions: Mapping[int, int]
    home: int


class Coordinator:
    """
    The devices of one address: the coordinator's own, and the members.

    @ivar share: share of the coordinator's own device.
    """

    def __init__(self, share: int, random: Callable[[], int], now: float) -> None:
        """@param random: returns unpredictable numbers of 64 bits, for the nonces of probes."""
        self.share = share
        self._random = random
        self._shares: set[int] = {share}
        self._services: dict[int, int] = {}
        self._receiving: set[int] = set()
        self._positions: dict[int, int] = {}
        self._seen: dict[int, int] = {}
        self._nonce = self._round = 0
        self._deadline: float | None = None
        self._probes: list[PositionProbe] = []
        self._events: list[FilterChanged] = []
        self._begin(now)

    @property
    def shares(self) -> frozenset[int]:
        """The shares of all devices of the address."""
        return frozenset(self._shares)

    def entered(self, share: int, now: float) -> None:
        """Add a member; raises ValueError for an invalid share."""
        if not 0 < share < 255 or share == self.share:
            raise ValueError(f"{share} is not a valid share of a member")
        if share in self._shares:
            self._remove(share)  # an earlier line of the same device
        self._shares.add(share)
        self._begin(now)

    def left(self, share: int, now: float) -> None:
        """Remove a member."""
        if share in self._shares and share != self.share:
            self._remove(share)
            self._begin(now)

    def serves(self, share: int, serviceID: int, isServed: bool) -> None:
        """Add or remove a service of a device; raises ValueError if there are too many."""
        if not isServed:
            if self._services.get(serviceID) == share:
                del self._services[serviceID]
            return
        if sum(owner == share for owner in self._services.values()) >= SERVICES:
            raise ValueError(f"more than {SERVICES} services")
        self._services[serviceID] = share

    def isKnown(self, destination: Destination) -> bool:
        """Return whether a device has reported that it serves the service, or has the share."""
        return destination.serviceID in self._services or destination.share in self._shares

    def receives(self, share: int, isReceiving: bool) -> None:
        """Record whether queue pair 1 of a device receives."""
        (self._receiving.add if isReceiving else self._receiving.discard)(share)

    def seen(self, share: int, position: int, nonce: int, now: float) -> None:
        """Record the position whose probe a device has received."""
        if share not in self._shares:
            return
        if nonce != self._nonce:
            if share not in self._positions and self._deadline is None:
                self._begin(now)  # it was too busy to answer in time
            return
        if share in self._seen:
            return  # probes of positions without a socket go anywhere, and are sent later
        self._seen[share] = position
        if self._isComplete:
            self._settle()
            if sorted(self._seen.values()) == list(range(len(self._seen))):
                self._deadline = None

    def shareOf(self, destination: Destination) -> int | None:
        """Return the share of the device that receives a packet for queue pair 1; None if it is dropped."""
        if destination.serviceID in self._services:
            return self._services[destination.serviceID]
        if destination.share in self._shares:
            return destination.share
        return self.share if self.share in self._receiving else min(self._receiving, default=None)

    def deadline(self) -> float | None:
        return self._deadline

    def expired(self, now: float) -> None:
        """Use the reports of an incomplete round, and begin another one."""
        if self._deadline is None or now < self._deadline:
            return
        if not self._isComplete:
            self._settle()
        self._round += 1
        if self._round < ROUNDS:
            self._probe(now)
        else:
            self._deadline = None

    def outgoing(self) -> list[PositionProbe]:
        probes, self._probes = self._probes, []
        return probes

    def events(self) -> list[FilterChanged]:
        """Take the latest filter, if it has changed."""
        events, self._events = self._events[-1:], []
        return events

    def _remove(self, share: int) -> None:
        self._shares.discard(share)
        self._positions.pop(share, None)
        self._receiving.discard(share)
        self._services = {service: owner for service, owner in self._services.items() if owner != share}

    def _begin(self, now: float) -> None:
        self._round = 0
        self._probe(now)

    def _probe(self, now: float) -> None:
        self._nonce = self._random()
        self._seen = {}
        count = len(self._shares) + 1 + self._round  # sockets of stopped processes have positions as well
        self._probes = [PositionProbe(position, self._nonce) for position in range(count)]
        self._deadline = now + min(_LONGEST_ROUND, _FIRST_ROUND * 2**self._round)

    @property
    def _isComplete(self) -> bool:
        """Whether each device has reported a position in this round."""
        return self._seen.keys() >= self._shares

    def _settle(self) -> None:
        """Use the positions that were reported in this round."""
        self._positions = dict(self._seen)
        home = self._seen.get(self.share, min(self._seen.values(), default=0))
        self._events.append(FilterChanged(dict(self._seen), home))
