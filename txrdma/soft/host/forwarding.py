"""
Passes packets at UDP port 4791 to the devices that they belong to.

A member passes packets for other devices to the coordinator. The coordinator passes them to the member that
they belong to, and stores those for processes that have not reported to it yet.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container
from typing import Final

from twisted.internet.interfaces import IReactorTime

from txrdma.soft.host._coordinator import Coordinator
from txrdma.soft.host._management import Destination, destinationOf
from txrdma.soft.host.lines import HostLine
from txrdma.soft.host.names import isClaimed, isShareTaken

MOST_AWAITED: Final = 64
"""Number of packets that a coordinator stores for processes that have not reported to it yet."""

AWAITED_SECONDS: Final = 0.5
"""Seconds after which such a packet is dropped: its sender repeats it."""

_GSI: Final = 1


class Forwarder:
    """
    Passes on the packets that one device receives for others.

    @ivar forwarded: processes packets for this device; None until C{PortMember.start} and after the end.
    @ivar coordinator: the coordinator's state; None if this device is a member.
    @ivar home: the line to the coordinator; None if this device is the coordinator, or seeks one.
    @ivar members: lines of the coordinator to the members, by their shares.
    """

    def __init__(self, clock: IReactorTime, address: str, share: int, services: Container[int]) -> None:
        """@param services: service IDs of this device."""
        self._clock, self._address, self._share, self._services = clock, address, share, services
        self.forwarded: Callable[[tuple[str, int], memoryview], None] | None = None
        self.coordinator: Coordinator | None = None
        self.home: HostLine | None = None
        self.members: dict[int, HostLine] = {}
        self._awaited: deque[tuple[float, tuple[str, int], bytes]] = deque(maxlen=MOST_AWAITED)

    def reset(self) -> None:
        """Drop the lines to other devices, and the packets stored for them."""
        self.members.clear()
        self._awaited.clear()
        self.coordinator = self.home = None

    def redirect(self, number: int, packet: memoryview, source: tuple[str, int]) -> bool:
        """
        Pass a received packet to the device that it belongs to.

        @param number: number of its destination queue pair, which is 1 or does not exist here.
        @return: False if the packet belongs to this device.
        """
        if number == _GSI:
            destination = destinationOf(packet)
            if destination.serviceID in self._services:
                return False
        else:
            destination = Destination(share=number >> 16)
        if destination.share == self._share:
            return False
        if self._isAwaited(destination):
            self._store(source, packet, self._clock.seconds())
            return True
        line = self.home if self.coordinator is None else self._lineFor(number, destination)
        if line is None:
            return not self._isOwn(number, destination)
        line.forward(source, packet)
        return True

    def _isAwaited(self, destination: Destination) -> bool:
        """Return whether a packet is for a process that has not reported to this coordinator yet."""
        coordinator, (service, share) = self.coordinator, destination
        if coordinator is None or coordinator.isKnown(destination):
            return False
        if service is not None:
            return isClaimed(self._address, service)
        return share is not None and isShareTaken(self._address, share)

    def _lineFor(self, number: int, destination: Destination) -> HostLine | None:
        """Return the line to the member that a packet is for; None if there is none, or for this device."""
        assert self.coordinator is not None
        if number == _GSI:
            share = self.coordinator.shareOf(destination)
        else:
            share = destination.share
        return None if share is None else self.members.get(share)

    def _isOwn(self, number: int, destination: Destination) -> bool:
        """Return whether this device, as the coordinator, receives a packet that names no other device."""
        return (
            self.coordinator is not None
            and number == _GSI
            and self.coordinator.shareOf(destination) == self._share
        )

    def forward(self, source: tuple[str, int], packet: memoryview, receivedAt: float) -> None:
        """Pass a forwarded packet on; one without a receiver is dropped."""
        if self.coordinator is not None:
            number = int.from_bytes(packet[5:8], "big")
            known = destinationOf(packet) if number == _GSI else Destination(share=number >> 16)
            target = None if known.share == self._share else self._lineFor(number, known)
            if self._isAwaited(known):
                self._store(source, packet, receivedAt)
                return
            if target is not None:
                target.forward(source, packet)
                return
            if known.share != self._share and not self._isOwn(number, known):
                return
        if self.forwarded is not None:
            self.forwarded(source, packet)

    def _store(self, source: tuple[str, int], packet: memoryview, receivedAt: float) -> None:
        """
        Store a packet for a process that will report soon.

        It is often the answer to a request that arrived on another socket before the report.
        """
        self._awaited.append((receivedAt, source, bytes(packet)))

    def forwardStored(self) -> None:
        """Pass on stored packets for a process that has reported; store those for other processes again."""
        if not self._awaited:
            return
        stored, since = list(self._awaited), self._clock.seconds() - AWAITED_SECONDS
        self._awaited.clear()
        for at, source, packet in stored:
            if at >= since:
                self.forward(source, memoryview(packet), at)
