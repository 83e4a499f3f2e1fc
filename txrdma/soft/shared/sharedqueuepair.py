"""
The connection of a local queue pair to one of another process on the same host: its memory and messages.

L{txrdma.soft.shared.sharedmemoryport} explains how the processes find each other.
"""

from __future__ import annotations

import mmap
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, ExitStack
from typing import Final

from twisted.internet.interfaces import IDelayedCall, IReactorFDSet, IReactorTime
from twisted.logger import Logger

from txrdma.error import ResourceExhausted
from txrdma.iba.types import QPN, RKey
from txrdma.iba.verbs import AsyncEventKind, Operation, SendRequest
from txrdma.kit.delayedcalls import cancelCall, isPending
from txrdma.kit.logs import lacksDescriptors, lacksMappings, RateLimitedLogger
from txrdma.soft.core.pieces import part, scatter
from txrdma.soft.core.queuepair import SoftQueuePair
from txrdma.soft.shared._doorbells import Doorbell
from txrdma.soft.shared._lane import Lane
from txrdma.soft.shared._layout import RemoteRegion
from txrdma.soft.shared._rendezvous import (
    AccessReply,
    AccessRequest,
    Join,
    makeBox,
    mapRegion,
    MOST_DATA,
    PairNotice,
    Reach,
    RegionReply,
    RegionRequest,
    RendezvousKind,
)
from txrdma.soft.shared.peerdevice import PeerDevice
from txrdma.soft.shared.unixpackets import LocalRendezvous
from txrdma.unix.mapping import closeMapping

_rateLimited = RateLimitedLogger(Logger())

_AGAIN: Final = 0.1
"""Seconds until a region is requested again whose descriptor was lost."""

_UNREAD: Final = 1.0
"""Seconds until a queue pair checks again whether its peer's process has read the JOIN."""

MOST_REGIONS: Final = 1024
"""Maximum number of regions of a peer that a queue pair has mapped: a process can map about 65,000 in all."""

MOST_MAPPED_BYTES: Final = 16 << 40
"""
Maximum number of bytes of a peer's regions that its queue pairs have mapped: an eighth of the addresses of a
process of 64 bits. Mappings use no other memory of this process.
"""

_NO_KEYS: Final[frozenset[RKey]] = frozenset()

_ALWAYS: Final = memoryview((1).to_bytes(8, sys.byteorder)).cast("Q")


class SharingReactor(IReactorFDSet, IReactorTime):
    """A reactor for shared memory: descriptors and delayed calls."""


class SharedQueuePair:
    """A queue pair that is connected through shared memory: its lane, and the resources of the lane."""

    __slots__ = (
        *("_box", "_channel", "_closed", "_descriptorlessRegions", "_doorbells", "_hasDoorbell"),
        *("_isResting", "_mappings", "_moving", "_own", "_peer", "_peerBox", "_peerByte", "_reactor"),
        *("_retryCall", "_ringDoorbell", "_timer", "destination", "isJoined", "lane", "number", "owner"),
    )

    def __init__(
        self,
        reactor: SharingReactor,
        rendezvous: LocalRendezvous,
        peer: PeerDevice,
        owner: SoftQueuePair,
        destination: QPN,
        ring: int,
        closed: Callable[[QPN], None],
    ) -> None:
        self.owner = owner
        self.number = owner.number
        self.destination = destination
        self._reactor = reactor
        self._ringDoorbell = rendezvous.ring
        self._closed = closed
        self._peer = peer
        self._isResting = False
        self._timer: IDelayedCall | None = None
        self._retryCall: IDelayedCall | None = None
        self._descriptorlessRegions = _NO_KEYS  # keys whose reply lost its descriptor
        # An access by messages: the request, its memory, the bytes done so far, and all bytes.
        self._moving: tuple[SendRequest, list[memoryview], int, int] | None = None
        try:
            self._box, mapping = makeBox(ring)  # the descriptor is closed when the peer has it
        except OSError as error:
            raise ResourceExhausted(f"no shared memory for a queue pair: {error}") from error
        self._own = mapping
        self._peerBox: mmap.mmap | None = None
        self._mappings: dict[RKey, mmap.mmap] = {}  # regions of the peer
        self._doorbells: list[Doorbell] = []
        self._peerByte = 0  # the peer's doorbell byte
        self.isJoined = False
        self._channel = owner.receiveQueue.channel
        self._hasDoorbell = owner.sendQueue is owner.receiveQueue
        try:
            self.lane = Lane(owner, self, memoryview(mapping), owner.shared is not None)
            if self._hasDoorbell:
                self.lane.doorbell = self._channel.claimDoorbell()
        except BaseException:
            closeMapping(mapping)
            self._closeBox()
            raise

    def invite(self) -> None:
        """Send the local box and doorbells to the peer's queue pair."""
        sends, receives = self.owner.sendQueue.channel, self.owner.receiveQueue.channel
        message = Join(
            kind=RendezvousKind.JOIN,
            source=self.number,
            destination=self.destination,
            firstPSN=self.owner.attributes.rqPSN or 0,
            receives=self._peer.doorbellNumber(receives),
            sends=self._peer.doorbellNumber(sends),
            doorbellByte=self.lane.doorbell,
        )
        self._peer.send(message.encode(), (self._box,))
        self._closeBox()

    def _closeBox(self) -> None:
        """Close the descriptor of the local box, which stays mapped."""
        box, self._box = self._box, -1
        if box >= 0:
            os.close(box)

    def join(self, box: mmap.mmap, doorbells: list[Doorbell], doorbellByte: int) -> None:
        self.isJoined = True
        self._peerByte = doorbellByte
        self._peerBox = box
        self._doorbells = doorbells
        with self._isolated():
            self.lane.attach(memoryview(box))

    def poll(self) -> None:
        """Process records that the peer has written."""
        with self._isolated():
            self.lane.poll()

    # txrdma.soft.shared._layout.LaneServices

    def ring(self, which: int) -> None:
        """Ring the doorbell of the peer's C{RECEIVE_QUEUE} or C{SEND_QUEUE}; without one, nudge it."""
        if self._doorbells:
            doorbell = self._doorbells[which]
            if doorbell.descriptor < 0:
                self.nudge()
            else:
                if doorbell.page is not None:
                    doorbell.page[self._peerByte] = 1
                self._ringDoorbell(doorbell.descriptor)

    def nudge(self) -> None:
        """Request that the peer polls this lane, regardless of its wake word."""
        self._note(RendezvousKind.NUDGE)

    def _note(self, kind: RendezvousKind) -> None:
        self._peer.send(PairNotice(kind=kind, source=self.number, destination=self.destination).encode())

    def requestRegion(self, rkey: RKey) -> None:
        """Request a region of the peer; the reply calls C{Lane.regionKnown}."""
        message = RegionRequest(
            kind=RendezvousKind.REGION_REQUEST, source=self.number, destination=self.destination, rkey=rkey
        )
        self._peer.send(message.encode())

    def offerRegion(self, rkey: RKey) -> None:
        """Send a local region to the peer, as if it had requested it."""
        message = RegionRequest(
            kind=RendezvousKind.REGION_REQUEST, source=self.destination, destination=self.number, rkey=rkey
        )
        self._peer.regionRequested(message, self._peer.send)

    def access(self, request: SendRequest, pieces: list[memoryview]) -> None:
        """Access memory that can't be mapped, by messages; the reply calls C{Lane.accessed}."""
        self._moving = (request, pieces, 0, sum(map(len, pieces)))
        self._move()

    def descriptorsLost(self, rkey: RKey) -> None:
        """Request a region again later, because no descriptor is left for it."""
        _rateLimited.warn(
            "descriptors",
            "no descriptor is available to map memory of another process: requests wait for one",
        )
        self._descriptorlessRegions |= {rkey}
        self._retryLater()

    def _retryLater(self) -> None:
        if not isPending(self._retryCall):
            self._retryCall = self._reactor.callLater(_AGAIN, self._retry)

    def _retry(self) -> None:
        descriptorsLost, self._descriptorlessRegions = self._descriptorlessRegions, _NO_KEYS
        for rkey in descriptorsLost:
            self.requestRegion(rkey)

    def watch(self) -> None:
        """Call C{Lane.expired} in the next reactor iteration, unless a call is already scheduled."""
        if self._timer is None or not self._timer.active():
            self._timer = self._reactor.callLater(0, self._expired)
            if self._isResting:
                self._timer.cancel()  # L{wake} schedules it again

    def rest(self) -> None:
        """Cancel delayed calls until L{wake}."""
        self._isResting = True
        cancelCall(self._timer)
        cancelCall(self._retryCall)

    def wake(self) -> None:
        """Schedule delayed calls again. Idempotent."""
        self._isResting = False
        if self._timer is not None and not self._timer.active():
            self.watch()
        if self._descriptorlessRegions:
            self._retryLater()

    def _expired(self) -> None:
        again = self._timer = None
        with self._isolated():
            self.lane.poll()
            if self.isJoined or self._peer.isReading():
                again = self.lane.expired(self._reactor.seconds())
            else:
                again = _UNREAD  # a stopped process can't answer, as over a lane that is open
        if again is not None and self._timer is None:
            self._timer = self._reactor.callLater(again, self._expired)

    @contextmanager
    def _isolated(self) -> Iterator[None]:
        """Fail only this queue pair if the work in the context raises: the line to the peer stays."""
        try:
            yield
        except Exception:
            self.owner.raised()

    def left(self) -> None:
        """Notify the peer that the lane is closed, if it was invited, and unmap all memory."""
        with ExitStack() as steps:  # the last one first; each is taken although others raise
            steps.callback(self._closeBox)
            steps.callback(closeMapping, self._own)
            steps.callback(self._release)
            if self._hasDoorbell:
                steps.callback(self._channel.releaseDoorbell, self.lane.doorbell)
                self.lane.doorbell = 0  # another lane may get it
            steps.callback(self._closed, self.number)
            if self._box < 0:
                self._note(RendezvousKind.LEAVE)

    def _release(self) -> None:
        """Release memory and doorbells of the peer."""
        with ExitStack() as steps:
            box, self._peerBox = self._peerBox, None
            if box is not None:
                steps.callback(closeMapping, box)
            for rkey in tuple(self._mappings):
                steps.callback(self._unmap, rkey)
            doorbells, self._doorbells = self._doorbells, []
            for doorbell in doorbells:
                steps.callback(doorbell.release)
            self._descriptorlessRegions = _NO_KEYS
            self._moving = None
            self.rest()
            self._timer = self._retryCall = None

    # Messages of the peer.

    def nudged(self) -> None:
        """Poll the lane; wake local pollers if the peer has no doorbell."""
        with self._isolated():
            self.lane.nudged()
        if not self._peer.isTrusted:
            for queue in {self.owner.sendQueue, self.owner.receiveQueue}:
                queue.channel.ring(self.lane.doorbell)

    def peerEnded(self, event: AsyncEventKind | None) -> None:
        """Handle the end of the peer's queue pair; with an event, of its process."""
        self.lane.peerEnded(event)
        self._release()

    def regionReceived(self, reply: RegionReply, descriptors: list[int]) -> None:
        """Handle the reply to L{requestRegion}, or an offer, and map the region if possible."""
        region: RemoteRegion | None = None
        if not self.lane.wants(reply.rkey):
            return  # the lane is closed, or has the region
        self._makeSpace()
        if reply.reach in (Reach.MAPPED, Reach.BY_MESSAGES):
            region = RemoteRegion(reply.address, reply.length, reply.rights, None, _ALWAYS)
        if reply.reach is Reach.MAPPED:
            if len(descriptors) != 1:
                raise ValueError("a mapped region needs one descriptor")
            try:
                region = self._map(reply, descriptors[0]) or region
            except OSError as error:
                if lacksDescriptors(error):
                    self.descriptorsLost(reply.rkey)
                    return
                if not lacksMappings(error):
                    raise
                # It is accessed by messages, without a mapping.
        with self._isolated():
            self.lane.regionKnown(reply.rkey, region, reply.access)

    def _map(self, reply: RegionReply, descriptor: int) -> RemoteRegion | None:
        """Map a region; return None if the peer's regions would be too large. Raises as L{mapRegion} does."""
        if self._peer.mappedBytes + reply.validOffset > MOST_MAPPED_BYTES:
            return None
        mapping, region = mapRegion(reply, descriptor)
        self._unmap(reply.rkey)
        self._mappings[reply.rkey] = mapping
        self._peer.mappedBytes += len(mapping)
        return region

    def _unmap(self, rkey: RKey) -> None:
        """Unmap a region of the peer, if it is mapped."""
        mapping = self._mappings.pop(rkey, None)
        if mapping is not None:
            self._peer.mappedBytes -= len(mapping)
            closeMapping(mapping)

    def _makeSpace(self) -> None:
        """Unmap regions that the peer has deregistered, and the oldest one if there are too many others."""
        regions = self.lane.regions
        unneeded = [key for key, region in regions.items() if region is not None and not region.valid[0]]
        if len(regions) - len(unneeded) >= MOST_REGIONS:
            unneeded.append(next(key for key in regions if key not in unneeded))
        for rkey in unneeded:
            del regions[rkey]
            self._unmap(RKey(rkey))

    def _move(self) -> None:
        """Request the next L{MOST_DATA} bytes of a remote access; complete it after the last."""
        if self._moving is None:
            return
        request, pieces, done, length = self._moving
        if done == length:
            self._moving = None
            with self._isolated():
                self.lane.accessed(True)
            return
        writing = request.operation is not Operation.RDMA_READ
        size = min(MOST_DATA, length - done)
        message = AccessRequest(
            kind=RendezvousKind.ACCESS_REQUEST,
            source=self.number,
            destination=self.destination,
            writing=writing,
            rkey=request.rkey,
            address=request.remoteAddress + done,
            length=size,
        )
        what = b"".join(part(pieces, done, size)) if writing else b""
        self._peer.send(message.encode() + what)

    def accessReplied(self, answer: AccessReply, content: memoryview) -> None:
        """Handle the reply to an access request."""
        if self._moving is None:
            raise ValueError("an access reply without a request")
        request, pieces, done, length = self._moving
        if not answer.allowed:
            self._moving = None
            with self._isolated():
                self.lane.accessed(False)
            return
        size = min(MOST_DATA, length - done)
        if request.operation is Operation.RDMA_READ:
            if len(content) != size:
                raise ValueError(f"an access reply of {len(content)} bytes instead of {size}")
            scatter(pieces, done, content)
        self._moving = (request, pieces, done + size, length)
        self._move()
