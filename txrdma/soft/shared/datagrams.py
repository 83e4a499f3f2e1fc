"""
Datagrams between devices of one host by shared memory: who has such a lane, and who looks at it when.

A lane is made when a datagram goes to a device whose process may share memory with ours; until it is there,
and where there is none, datagrams go by UDP. Whoever polls a queue pair of datagrams looks at the lanes. For
who sleeps there is one bell, a descriptor on the reactor, as UDP's socket is. It is rung once: then somebody
looks, and nobody rings any more until those who look want to sleep, and arm their completion queues.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from typing import Final

from zope.interface import implementer

from twisted.internet.error import ConnectionDone, ConnectionLost
from twisted.internet.interfaces import IDelayedCall, IReadDescriptor
from twisted.logger import Logger
from twisted.python.failure import Failure

from txrdma.error import RDMAError
from txrdma.kit.logs import Seldom
from txrdma.soft.shared._doorbells import Channel, Doorbell
from txrdma.soft.shared._rendezvous import DatagramRingOffer, makeBox, mapBox, MessageKind
from txrdma.soft.shared.datagramlane import DatagramLane
from txrdma.soft.shared.peerprocess import PeerProcess
from txrdma.soft.shared.sharedqueuepair import closeMapping, SharingReactor
from txrdma.soft.shared.unixpackets import Rendezvous

_seldom = Seldom(Logger())

RING_BYTES: Final = 1 << 22
"""Bytes of the datagrams of one device that wait for another: about 1,000 of the longest."""

MOST_LOOKED_AT: Final = 16
"""Lanes that are looked at by who polls, those where something came last; others ring."""


WATCH_SECONDS: Final = 0.002
"""Seconds without a datagram after which peers are asked to ring again, if nobody has asked before."""


def _nothing() -> None:
    """Do nothing: nobody takes packets."""


@implementer(IReadDescriptor)
class _Bell:
    """Wakes the reactor for all lanes: an eventfd."""

    def __init__(self, lanes: SharedDatagrams) -> None:
        self._lanes = lanes
        self.doorbell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def fileno(self) -> int:
        """The eventfd; -1 when it is closed."""
        return self.doorbell

    def logPrefix(self) -> str:
        """The prefix of its lines in the log."""
        return "txrdma.soft.shared.datagrams"

    def doRead(self) -> None:
        """Have all lanes looked at: a peer has written."""
        self._lanes.woken()

    def silence(self) -> None:
        """Be readable no more, until it is rung."""
        try:
            os.read(self.doorbell, 8)
        except BlockingIOError:
            pass

    def ring(self) -> None:
        """Be readable: we ring for ourselves."""
        os.eventfd_write(self.doorbell, 1)

    def connectionLost(self, reason: Failure) -> None:
        """The reactor reads no more: mostly because it ends."""
        if not reason.check(ConnectionLost, ConnectionDone):
            self._lanes.close()

    def close(self) -> None:
        """Close it; it has left the reactor before."""
        doorbell, self.doorbell = self.doorbell, -1
        if doorbell >= 0:
            os.close(doorbell)


class DatagramLink:
    """A lane of datagrams to one other device, and all that it keeps open."""

    def __init__(self, rendezvous: Rendezvous, peer: PeerProcess) -> None:
        """
        @raise OSError: there is no memory, or no descriptor for it.
        """
        self.peer = peer
        self._rendezvous = rendezvous
        self._descriptor, self._own = makeBox(RING_BYTES)  # kept until the peer has it
        self._theirs: mmap.mmap | None = None
        self._doorbell: Doorbell | None = None
        self.lane = DatagramLane(peer.name, memoryview(self._own), self._ring)

    def invite(self, bell: Channel) -> None:
        """Hand our box to the other device."""
        message = DatagramRingOffer(kind=MessageKind.DATAGRAM_RING, number=self.peer.bellOf(bell))
        self.peer.send(message.encode(), (self._descriptor,))
        os.close(self._descriptor)
        self._descriptor = -1

    def join(self, box: mmap.mmap, doorbell: Doorbell) -> None:
        """The other device's box, and the doorbell that wakes it, are here."""
        self._theirs, self._doorbell = box, doorbell
        self.lane.attach(memoryview(box))

    def _ring(self) -> None:
        if self._doorbell is not None:
            self._rendezvous.ring(self._doorbell.descriptor)

    def leave(self) -> None:
        """Send nothing any more, and wake nobody."""
        self.lane.leave()
        doorbell, self._doorbell = self._doorbell, None
        if doorbell is not None:
            doorbell.release()

    def close(self) -> None:
        """Let go of all of it."""
        self.leave()
        self.lane.close()
        closeMapping(self._own)
        if self._theirs is not None:
            closeMapping(self._theirs)
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class SharedDatagrams:
    """
    The lanes of one port's datagrams.

    @ivar isOpen: whether there are any, so that looking may find something.
    """

    def __init__(
        self,
        reactor: SharingReactor,
        rendezvous: Rendezvous,
        reach: Callable[[tuple[str, int]], DatagramLink | None],
        lost: Callable[[tuple[str, int], str], None],
    ) -> None:
        """
        @param reach: finds the device with this IP address and UDP port, if it is one of this host.
        @param lost: closes all connections to the process of that device, for a reason to be logged.
        """
        self._reactor = reactor
        self._rendezvous = rendezvous
        self._reach = reach
        self._lost = lost
        self._received: Callable[[tuple[str, int], list[memoryview]], None] | None = None
        self._turnEnded: Callable[[], None] = _nothing
        self._bell: _Bell | None = None
        self._datagramLinks: list[DatagramLink] = []
        self._lookedAt: tuple[DatagramLane, ...] = ()
        self._isArmed = self._cameSince = False
        self._timer: IDelayedCall | None = None
        self._isResting = self._isClosed = False
        self.isOpen = False

    def start(
        self, received: Callable[[tuple[str, int], list[memoryview]], None], turnEnded: Callable[[], None]
    ) -> None:
        """
        Hand packets to C{received} from now on; until then no queue pair could take them.

        @param received: takes the peer's IP address and UDP port, and packets from BTH to ICRC, which are
            valid until it returns.
        @param turnEnded: called when no more has come for now.
        """
        self._received, self._turnEnded = received, turnEnded

    # Lanes.

    def laneTo(self, name: tuple[str, int]) -> DatagramLane | None:
        """The lane to the device with this IP address and UDP port, which may not be up yet."""
        try:
            datagramLink = None if self._isClosed else self._reach(name)
        except (OSError, RDMAError):
            return None  # and UDP does
        return None if datagramLink is None else datagramLink.lane

    def open(self, peer: PeerProcess) -> DatagramLink | None:
        """A new lane to that device, which is invited; None where the system does not have what it takes."""
        if self._isClosed:
            return None
        try:
            if self._bell is None:
                self._bell = _Bell(self)
                if not self._isResting:
                    self._reactor.addReader(self._bell)
            made = DatagramLink(self._rendezvous, peer)
        except OSError:
            return None  # and UDP does
        made.invite(self._bell)
        if peer.isLost:  # by the invitation, which could not be sent
            made.close()
            return None
        self._datagramLinks.append(made)
        return made

    def isJoined(self, datagramLink: DatagramLink, descriptor: int, doorbell: Doorbell) -> None:
        """
        The other device has handed over its box.

        @raise ValueError: it is none.
        @raise OSError: it can't be mapped.
        """
        try:
            box = mapBox(descriptor)
        except BaseException:
            doorbell.release()
            raise
        datagramLink.join(box, doorbell)
        self._lookedAt = (datagramLink.lane, *self._lookedAt)[:MOST_LOOKED_AT]
        self.isOpen = True
        self._ring()  # it may have written before we could ask to be woken

    def over(self, datagramLink: DatagramLink) -> None:
        """The other process is gone: what it has written is taken first."""
        if datagramLink in self._datagramLinks:
            datagramLink.leave()
            self._ring()

    def _ring(self) -> None:
        if self._bell is not None:
            self._bell.ring()

    # Looking.

    def look(self) -> bool:
        """Bring what has come by the lanes that are looked at; tell whether there was anything."""
        return self._look(self._lookedAt)

    def _look(self, lanes: tuple[DatagramLane, ...]) -> bool:
        found = False
        for lane in lanes:
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
        if found:
            self._cameSince = True
            self._turnEnded()
        return found

    def arm(self) -> None:
        """Have peers ring for what they write from now on; whoever asks looks once more after this."""
        if not self._isArmed:
            self._armLanes()
            if len(self._datagramLinks) > len(self._lookedAt):
                self._ring()  # who asks does not look at all of them

    def _armLanes(self) -> None:
        self._isArmed = True
        for datagramLink in self._datagramLinks:
            datagramLink.lane.arm()

    def woken(self) -> None:
        """
        The bell was rung: look everywhere. Peers need not ring again while it flows.

        Whoever looks now, and sleeps later, arms before that. Should nobody do so, there is a timer.
        """
        if self._bell is not None:
            self._bell.silence()
        self._isArmed = False
        self._seek()
        if not self._cameSince:
            self._armLanes()
            self._seek()
        elif self._bell is not None and (self._timer is None or not self._timer.active()):
            self._timer = self._reactor.callLater(WATCH_SECONDS, self._watched)

    def _seek(self) -> None:
        """Look at all lanes; those that are over and empty go."""
        for datagramLink in tuple(self._datagramLinks):
            lane = datagramLink.lane
            if self._look((lane,)):
                if lane not in self._lookedAt:
                    self._lookedAt = (lane, *self._lookedAt)[:MOST_LOOKED_AT]
                if lane.isClosed:
                    self._ring()
            elif lane.isClosed:
                self.remove(datagramLink)

    def _watched(self) -> None:
        """Some time has passed: if nobody has brought anything meanwhile, nobody may be looking."""
        self._timer = None
        cameSince, self._cameSince = self._cameSince, False
        if self._isArmed:
            return
        if cameSince:
            self._timer = self._reactor.callLater(WATCH_SECONDS, self._watched)
        else:
            self._armLanes()
            self._seek()

    def _drop(self, lane: DatagramLane, reason: str) -> None:
        """Close the lane of a peer whose ring holds no records, and all that it has with us; others stay."""
        _seldom.warn(
            lane.name,
            "datagrams of the device at {address} are not to be understood: {reason}",
            address=lane.name[0],
            reason=reason,
        )
        for datagramLink in [each for each in self._datagramLinks if each.lane is lane]:
            self.remove(datagramLink)
            self._lost(datagramLink.peer.name, reason)

    def remove(self, datagramLink: DatagramLink) -> None:
        """Close a lane at once. Twice is fine."""
        if datagramLink in self._datagramLinks:
            self._datagramLinks.remove(datagramLink)
        self._lookedAt = tuple(lane for lane in self._lookedAt if lane is not datagramLink.lane)
        self.isOpen = bool(self._lookedAt)
        datagramLink.close()

    # The port's life.

    def rest(self) -> None:
        """Leave the reactor: what comes waits in its rings."""
        self._isResting = True
        if self._bell is not None:
            self._reactor.removeReader(self._bell)
        self._stopTimer()

    def _stopTimer(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None and timer.active():
            timer.cancel()

    def wake(self) -> None:
        """Be part of the reactor, again or still."""
        self._isResting = False
        if self._bell is not None:
            self._reactor.addReader(self._bell)
            self._ring()

    def close(self) -> None:
        """Close all lanes, and the bell. Twice is fine."""
        self._isClosed = True
        self._received, self._turnEnded = None, _nothing
        self._stopTimer()
        for datagramLink in tuple(self._datagramLinks):
            self.remove(datagramLink)
        bell, self._bell = self._bell, None
        if bell is not None:
            self._reactor.removeReader(bell)
            bell.close()
