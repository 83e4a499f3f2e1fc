"""
The meeting of a queue pair of ours with one of another process on the same host.

See L{txrdma.soft.shared.routes} for how the two find each other.
"""

from __future__ import annotations

import mmap
import os
import sys
from collections.abc import Callable
from typing import Final

from twisted.internet.interfaces import IDelayedCall, IReactorFDSet, IReactorTime
from twisted.logger import Logger

from txrdma.error import ResourceExhausted
from txrdma.iba.types import QPN, RKey
from txrdma.iba.verbs import AsyncEventKind, Operation, SendRequest
from txrdma.kit.logs import Seldom
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
    MessageKind,
    MOST_DATA,
    PairNotice,
    Reach,
    RegionReply,
    RegionRequest,
)
from txrdma.soft.shared._rings import part, spread
from txrdma.soft.shared.peerprocess import PeerProcess
from txrdma.soft.shared.unixpackets import NO_DESCRIPTORS, Rendezvous

_log = Logger()
_seldom = Seldom(_log)

_AGAIN: Final = 0.1
"""Seconds until a region is asked for again, for which there was no descriptor."""

_ALWAYS: Final = memoryview((1).to_bytes(8, sys.byteorder)).cast("Q")


class SharingReactor(IReactorFDSet, IReactorTime):
    """The interfaces of a reactor that shared memory needs: descriptors and time."""


class SharedQueuePair:
    """
    The meeting of a queue pair of ours with one of a peer: its lane, and all that the lane keeps open.

    @ivar lane: the data path.
    """

    def __init__(
        self,
        reactor: SharingReactor,
        rendezvous: Rendezvous,
        peer: PeerProcess,
        owner: SoftQueuePair,
        destination: QPN,
        ring: int,
        closed: Callable[[QPN], None],
    ) -> None:
        """
        @param closed: called with the queue pair's number when the lane has ended.
        """
        self.owner = owner
        self.number = owner.number
        self.destination = destination
        self._reactor = reactor
        self._rendezvous = rendezvous
        self._closed = closed
        self._peer = peer
        self._isResting = False
        self._timer: IDelayedCall | None = None
        self._retryCall: IDelayedCall | None = None
        self._descriptorlessRegions: set[RKey] = set()  # regions for which there was no descriptor
        self._moving: tuple[SendRequest, list[memoryview], int, int] | None = None
        try:
            self._box, mapping = makeBox(ring)  # the descriptor is kept until the peer has it
        except OSError as error:
            raise ResourceExhausted(f"no shared memory for a queue pair: {error}") from error
        self._own = mapping
        self._mappings: dict[RKey | None, mmap.mmap] = {}  # of the peer's regions, and under None its box
        self._doorbells: list[Doorbell] = []
        self.isJoined = False
        self.lane = Lane(owner, self, memoryview(mapping), owner.shared is not None)

    def invite(self) -> None:
        """Tell the peer's queue pair that ours is there."""
        sends, receives = self.owner.sendQueue.channel, self.owner.receiveQueue.channel
        message = Join(
            kind=MessageKind.JOIN,
            source=self.number,
            destination=self.destination,
            firstPSN=self.owner.attributes.rqPSN or 0,
            receives=self._peer.bellOf(receives),
            sends=self._peer.bellOf(sends),
        )
        self._peer.send(message.encode(), (self._box,))
        self._closeBox()

    def _closeBox(self) -> None:
        """Close the descriptor of our box, which stays mapped."""
        box, self._box = self._box, -1
        if box >= 0:
            os.close(box)

    def join(self, box: mmap.mmap, doorbells: list[Doorbell]) -> None:
        """The peer's queue pair is there."""
        self.isJoined = True
        self._mappings[None] = box
        self._doorbells = doorbells
        self.lane.attach(memoryview(box))

    # What the lane asks for: txrdma.soft.shared._layout.LaneServices.

    def wakeReceives(self) -> None:
        self._ring(0)

    def wakeSends(self) -> None:
        self._ring(1)

    def _ring(self, which: int) -> None:
        if self._doorbells:
            descriptor = self._doorbells[which].descriptor
            if descriptor < 0:
                self.nudge()
            else:
                self._rendezvous.ring(descriptor)

    def nudge(self) -> None:
        self._note(MessageKind.NUDGE)

    def _note(self, kind: MessageKind) -> None:
        self._peer.send(PairNotice(kind=kind, source=self.number, destination=self.destination).encode())

    def requestRegion(self, rkey: RKey) -> None:
        message = RegionRequest(
            kind=MessageKind.REGION_REQUEST, source=self.number, destination=self.destination, rkey=rkey
        )
        self._peer.send(message.encode())

    def access(self, request: SendRequest, pieces: list[memoryview]) -> None:
        self._moving = (request, pieces, 0, sum(map(len, pieces)))
        self._move()

    def descriptorsLost(self, rkey: RKey) -> None:
        """Ask for a region again in a while: the process has no descriptor for it at present."""
        _seldom.warn(
            "descriptors",
            "no descriptor is left for memory of another process: what goes there waits for one",
        )
        self._descriptorlessRegions.add(rkey)
        self._retryLater()

    def _retryLater(self) -> None:
        if self._retryCall is None or not self._retryCall.active():
            self._retryCall = self._reactor.callLater(_AGAIN, self._retry)

    def _retry(self) -> None:
        descriptorsLost, self._descriptorlessRegions = self._descriptorlessRegions, set()
        for rkey in descriptorsLost:
            self.requestRegion(rkey)

    def watch(self) -> None:
        if self._timer is None or not self._timer.active():
            self._timer = self._reactor.callLater(0, self._expired)
            if self._isResting:
                self._timer.cancel()  # C{wake} begins anew

    def rest(self) -> None:
        """Leave the reactor, until C{wake}."""
        self._isResting = True
        for call in (self._timer, self._retryCall):
            if call is not None and call.active():
                call.cancel()

    def wake(self) -> None:
        """Be part of the reactor, again or still."""
        self._isResting = False
        if self._timer is not None and not self._timer.active():
            self.watch()
        if self._descriptorlessRegions:
            self._retryLater()

    def _expired(self) -> None:
        self._timer = None
        try:
            self.lane.poll()
            again = self.lane.expired(self._reactor.seconds())
        except Exception:
            self.fail()
            return
        if again is not None and self._timer is None:
            self._timer = self._reactor.callLater(again, self._expired)

    def fail(self) -> None:
        """Log what has just raised, and end the queue pair: that costs nobody else anything."""
        _log.failure(
            "A queue pair that shares memory with another process fails by an error ({lane!r})",
            lane=self.lane,
        )
        try:
            self.owner.failed(AsyncEventKind.QP_FATAL)
        except Exception:
            _log.failure("It could not even let go of what it had to do ({lane!r})", lane=self.lane)

    def left(self) -> None:
        self._note(MessageKind.LEAVE)
        self._closed(self.number)
        self._release()
        closeMapping(self._own)
        self._closeBox()

    def _release(self) -> None:
        """Let go of what came from the peer."""
        self.rest()
        self._timer = self._retryCall = None
        self._descriptorlessRegions.clear()
        self._moving = None
        doorbells, self._doorbells = self._doorbells, []
        for doorbell in doorbells:
            doorbell.release()
        mappings, self._mappings = self._mappings, {}
        for mapping in mappings.values():
            closeMapping(mapping)

    # What the peer says.

    def nudged(self) -> None:
        """Look at what the peer has done, and wake who waits for it where the peer could not."""
        self.lane.nudged()
        if not self._peer.isTrusted:
            for queue in {self.owner.sendQueue, self.owner.receiveQueue}:
                queue.channel.ring()

    def peerGone(self, event: AsyncEventKind | None) -> None:
        """Take leave of the peer's queue pair, which is no more; with an event, its process is gone, too."""
        self.lane.peerGone(event)
        self._release()

    def regionReceived(self, told: RegionReply, descriptors: list[int]) -> None:
        """Take the peer's answer to C{requestRegion}, and map the region if it can be mapped."""
        region: RemoteRegion | None = None
        if told.rkey in self._mappings:
            raise ValueError("a region that nobody asked for")
        if not self.lane.wants(told.rkey):
            return  # who asked has gone meanwhile
        if told.reach is Reach.MAPPED:
            if len(descriptors) != 1:
                raise ValueError("a mapped region comes with one descriptor")
            self._forgetDeregistered()
            try:
                mapping, region = mapRegion(told, descriptors[0])
            except OSError as error:
                if error.errno not in NO_DESCRIPTORS:
                    raise
                self.descriptorsLost(told.rkey)
                return
            self._mappings[told.rkey] = mapping
        elif told.reach is Reach.BY_MESSAGES:
            region = RemoteRegion(told.address, told.length, told.rights, None, _ALWAYS)
        self.lane.regionKnown(told.rkey, region, told.access)

    def _forgetDeregistered(self) -> None:
        """Give back memory that the peer does not use any more."""
        regions = self.lane.regions
        for rkey in [key for key, region in regions.items() if region is not None and not region.valid[0]]:
            del regions[rkey]
            mapping = self._mappings.pop(RKey(rkey), None)
            if mapping is not None:
                closeMapping(mapping)

    def _move(self) -> None:
        """Ask for the next part of an access by messages."""
        if self._moving is None:
            return
        request, pieces, done, length = self._moving
        if done == length:
            self._moving = None
            self.lane.accessed(True)
            return
        writing = request.operation is not Operation.RDMA_READ
        size = min(MOST_DATA, length - done)
        message = AccessRequest(
            kind=MessageKind.ACCESS_REQUEST,
            source=self.number,
            destination=self.destination,
            writing=writing,
            rkey=request.rkey,
            address=request.remoteAddress + done,
            length=size,
        )
        what = b"".join(part(pieces, done, size)) if writing else b""
        self._peer.send(message.encode() + what)

    def moved(self, answer: AccessReply, content: memoryview) -> None:
        """The answer to what C{_move} asked."""
        if self._moving is None:
            raise ValueError("an answer to nothing")
        request, pieces, done, length = self._moving
        if not answer.allowed:
            self._moving = None
            self.lane.accessed(False)
            return
        size = min(MOST_DATA, length - done)
        if request.operation is Operation.RDMA_READ:
            if len(content) != size:
                raise ValueError("an answer of another length")
            spread(pieces, done, content)
        self._moving = (request, pieces, done + size, length)
        self._move()


def closeMapping(mapping: mmap.mmap) -> None:
    """Unmap it, now or when the last view of it is gone."""
    try:
        mapping.close()
    except BufferError:
        pass  # somebody still looks at it: it goes with the last view
