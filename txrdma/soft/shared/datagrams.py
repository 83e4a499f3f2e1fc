"""
Datagrams between devices of one host through shared memory: the lanes of one port, and their polling.

A lane is created when a datagram is sent to a device whose process may share memory with this one. Until it
is up, and without a lane, datagrams use UDP. Polling a UD queue pair polls the lanes. One eventfd on the
reactor wakes a process that does not poll: it is rung once, and not again until the pollers are about to
sleep and arm their completion queues.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from typing import Final

from zope.interface import implementer

from twisted.internet.error import ConnectionDone, ConnectionLost
from twisted.internet.interfaces import IReadDescriptor
from twisted.logger import Logger
from twisted.python.failure import Failure

from txrdma.error import RDMAError
from txrdma.kit.delayedcalls import Timer
from txrdma.kit.logs import RateLimitedLogger
from txrdma.soft.shared._doorbells import Doorbell, DoorbellChannel
from txrdma.soft.shared._rendezvous import DatagramRingOffer, makeBox, mapBox, RendezvousKind
from txrdma.soft.shared.datagramlane import DatagramLane
from txrdma.soft.shared.peerdevice import PeerDevice
from txrdma.soft.shared.sharedqueuepair import SharingReactor
from txrdma.soft.shared.unixpackets import LocalRendezvous, ring
from txrdma.unix.eventfds import takeEvent
from txrdma.unix.mapping import closeMapping

_log = Logger()
_rateLimited = RateLimitedLogger(_log)

RING_BYTES: Final = 1 << 22
"""Size of a ring in bytes: about 1,000 of the longest datagrams."""

MOST_POLLED: Final = 16
"""Largest number of lanes that a poll covers: those that received last. Unless armed, the others ring."""


WATCH_SECONDS: Final = 0.002
"""Seconds without a datagram after which lanes are armed, if no poller has done so."""


def _nothing() -> None:
    """Do nothing: no packets are accepted yet."""


@implementer(IReadDescriptor)
class _WakeupDescriptor:
    """An eventfd that wakes the reactor for all lanes of a port."""

    doorbellPage = -1

    def __init__(self, lanes: SharedDatagrams) -> None:
        self._lanes = lanes
        self.doorbell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def fileno(self) -> int:
        return self.doorbell

    def logPrefix(self) -> str:
        return "txrdma.soft.shared.datagrams"

    def doRead(self) -> None:
        self._lanes.woken()

    def silence(self) -> None:
        """Make the descriptor unreadable until it is rung."""
        takeEvent(self.doorbell)

    def ring(self) -> None:
        ring(self.doorbell)

    def connectionLost(self, reason: Failure) -> None:
        if not reason.check(ConnectionLost, ConnectionDone):
            self._lanes.close()

    def close(self) -> None:
        doorbell, self.doorbell = self.doorbell, -1
        if doorbell >= 0:
            os.close(doorbell)


class DatagramLink:
    """A lane of datagrams to one other device, with its memory and doorbell."""

    def __init__(self, rendezvous: LocalRendezvous, peer: PeerDevice) -> None:
        self.peer = peer
        self._rendezvous = rendezvous
        self._descriptor, self._own = makeBox(RING_BYTES)  # closed when the peer has it
        self._remote: mmap.mmap | None = None
        self._doorbell: Doorbell | None = None
        self.lane = DatagramLane(peer.name, memoryview(self._own), self._ring)

    def invite(self, bell: DoorbellChannel) -> None:
        """Send the local box to the other device."""
        message = DatagramRingOffer(kind=RendezvousKind.DATAGRAM_RING, number=self.peer.doorbellNumber(bell))
        self.peer.send(message.encode(), (self._descriptor,))
        os.close(self._descriptor)
        self._descriptor = -1

    def join(self, box: mmap.mmap, doorbell: Doorbell) -> None:
        """Attach the other device's box, and the doorbell that wakes it."""
        self._remote, self._doorbell = box, doorbell
        self.lane.attach(memoryview(box))

    def _ring(self) -> None:
        if self._doorbell is not None:
            self._rendezvous.ring(self._doorbell.descriptor)

    def leave(self) -> None:
        """Stop sending, and release the doorbell."""
        self.lane.leave()
        doorbell, self._doorbell = self._doorbell, None
        if doorbell is not None:
            doorbell.release()

    def close(self) -> None:
        """Release all memory and descriptors. Idempotent."""
        self.leave()
        self.lane.close()
        closeMapping(self._own)
        if self._remote is not None:
            closeMapping(self._remote)
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class SharedDatagrams:
    """The lanes of one port's datagrams; C{isOpen}: a poll can find something."""

    def __init__(
        self,
        reactor: SharingReactor,
        rendezvous: LocalRendezvous,
        linkTo: Callable[[tuple[str, int]], DatagramLink | None],
        lost: Callable[[tuple[str, int], str], None],
    ) -> None:
        """
        @param linkTo: returns the link to the device with this IP address and UDP port; None if it is not on
            this host, or of another user.
        @param lost: closes all connections to a device, for a reason.
        """
        self._reactor = reactor
        self._rendezvous = rendezvous
        self._linkTo = linkTo
        self._lost = lost
        self._received: Callable[[tuple[str, int], list[memoryview]], None] | None = None
        self._batchEnded: Callable[[], None] = _nothing
        self._doorbell: _WakeupDescriptor | None = None
        self._datagramLinks: list[DatagramLink] = []
        self._polledLanes: tuple[DatagramLane, ...] = ()
        self._isArmed = False  # peers ring for their next datagrams
        self._receivedSince = False  # a poll has found datagrams since the timer last checked
        self._timer = Timer(reactor)
        self._isResting = self._isClosed = False
        self.isOpen = False

    def start(
        self, received: Callable[[tuple[str, int], list[memoryview]], None], batchEnded: Callable[[], None]
    ) -> None:
        """
        Pass packets to C{received} from now on; C{batchEnded} is called after a batch.

        @param received: called with the peer's address, and packets from BTH to ICRC, which are valid until
            it returns.
        """
        self._received, self._batchEnded = received, batchEnded

    # Lanes.

    def laneTo(self, name: tuple[str, int]) -> DatagramLane | None:
        """
        Return the lane to the device with this IP address and UDP port, possibly not up yet; None if there is
        none.
        """
        try:
            datagramLink = None if self._isClosed else self._linkTo(name)
        except (OSError, RDMAError):
            return None  # UDP is used instead
        return None if datagramLink is None else datagramLink.lane

    def open(self, peer: PeerDevice) -> DatagramLink | None:
        """Offer a new lane to that device; return None if there is no memory or descriptor for it."""
        if self._isClosed:
            return None
        try:
            if self._doorbell is None:
                self._doorbell = _WakeupDescriptor(self)
                if not self._isResting:
                    self._reactor.addReader(self._doorbell)
            made = DatagramLink(self._rendezvous, peer)
        except OSError:
            return None  # UDP is used instead
        try:
            made.invite(self._doorbell)
        except RDMAError:  # it would have to wait for the peer, and no descriptor is left
            made.close()
            return None
        if peer.isLost:  # the offer could not be sent
            made.close()
            return None
        self._datagramLinks.append(made)
        return made

    def join(self, datagramLink: DatagramLink, descriptor: int, doorbell: Doorbell) -> None:
        """Attach the other device's box; raises ValueError or OSError if it can't be mapped."""
        try:
            box = mapBox(descriptor)
        except BaseException:
            doorbell.release()
            raise
        datagramLink.join(box, doorbell)
        self._polledLanes = (datagramLink.lane, *self._polledLanes)[:MOST_POLLED]
        self.isOpen = True
        self._ring()  # it may have written before this lane was armed

    def peerEnded(self, datagramLink: DatagramLink) -> None:
        """Stop sending to a process that has ended; its datagrams are still received."""
        if datagramLink in self._datagramLinks:
            datagramLink.leave()
            self._ring()

    def _ring(self) -> None:
        if self._doorbell is not None:
            self._doorbell.ring()

    # Polling.

    def poll(self, lanes: tuple[DatagramLane, ...] | None = None) -> bool:
        """
        Process datagrams of some lanes, or of the polled ones; return whether there were any.

        When the lanes are armed, a poll covers all of them: it is the last one before a sleep, or the first
        one after it, for packets that have not woken this process.
        """
        if lanes is None and self._isArmed and len(self._datagramLinks) > len(self._polledLanes):
            return self._pollAll()
        found = False
        for lane in self._polledLanes if lanes is None else lanes:
            try:
                try:
                    packets = lane.take()
                except ValueError as error:
                    self._drop(lane, str(error))
                    continue
                if packets:
                    found = True
                    if self._received is not None:
                        self._received(lane.name, packets)
                    lane.taken()
            except Exception:
                found = True
                _log.failure("Unexpected error: datagrams of the device at {name} are lost", name=lane.name)
        if found:
            self._receivedSince = True
            self._batchEnded()
        return found

    def arm(self) -> None:
        """Have peers ring for their next datagrams; the caller polls once after this."""
        if not self._isArmed:
            self._armLanes()
            self._receivedSince = False
            self._timer.stop()

    def _armLanes(self) -> None:
        for datagramLink in self._datagramLinks:
            datagramLink.lane.arm()
        self._isArmed = True

    def woken(self) -> None:
        """
        Poll all lanes, because a peer has rung.

        Peers do not ring again while datagrams flow. A poller arms the lanes before it sleeps; the timer
        does so in case the device is not polled.
        """
        if self._doorbell is not None:
            self._doorbell.silence()
        self._isArmed = False
        try:
            self._pollAll()
            if not self._receivedSince:
                self._armLanes()
                self._pollAll()
        except Exception:
            _log.failure("Unexpected error while datagrams were received")
        if not self._isArmed and self._doorbell is not None:
            self._timer.ensure(WATCH_SECONDS, self._watched)

    def _pollAll(self) -> bool:
        """Poll all lanes; return whether any had datagrams. Closed lanes that are empty are removed."""
        found = False
        for datagramLink in tuple(self._datagramLinks):
            lane = datagramLink.lane
            if self.poll((lane,)):
                found = True
                if lane not in self._polledLanes:
                    self._polledLanes = (lane, *self._polledLanes)[:MOST_POLLED]
                if lane.isClosed:
                    self._ring()
            elif lane.isClosed:
                self.remove(datagramLink)
        return found

    def _watched(self) -> None:
        """Arm the lanes, if no datagram was received since the last call."""
        receivedSince, self._receivedSince = self._receivedSince, False
        if self._isArmed:
            return
        self._timer.start(WATCH_SECONDS, self._watched)  # also if arming raises
        if not receivedSince:
            self._armLanes()
            self._timer.stop()
            self._pollAll()

    def _drop(self, lane: DatagramLane, reason: str) -> None:
        """Close all connections to a peer that has written an invalid record."""
        _rateLimited.warn(
            lane.name,
            "closing shared memory with the device at {address}, whose datagram ring is invalid: {reason}",
            address=lane.name[0],
            reason=reason,
        )
        for datagramLink in [each for each in self._datagramLinks if each.lane is lane]:
            self.remove(datagramLink)
            self._lost(datagramLink.peer.name, reason)

    def remove(self, datagramLink: DatagramLink) -> None:
        """Close a lane at once. Idempotent."""
        if datagramLink in self._datagramLinks:
            self._datagramLinks.remove(datagramLink)
        self._polledLanes = tuple(lane for lane in self._polledLanes if lane is not datagramLink.lane)
        self.isOpen = bool(self._polledLanes)
        datagramLink.close()

    # Lifecycle.

    def rest(self) -> None:
        """Leave the reactor; datagrams wait in their rings."""
        self._isResting = True
        if self._doorbell is not None:
            self._reactor.removeReader(self._doorbell)
        self._timer.stop()

    def wake(self) -> None:
        """Return to the reactor. Idempotent."""
        self._isResting = False
        if self._doorbell is not None:
            self._reactor.addReader(self._doorbell)
            self._ring()

    def close(self) -> None:
        self._isClosed = True
        self._received, self._batchEnded = None, _nothing
        self._timer.stop()
        for datagramLink in tuple(self._datagramLinks):
            self.remove(datagramLink)
        bell, self._doorbell = self._doorbell, None
        if bell is not None:
            self._reactor.removeReader(bell)
            bell.close()
