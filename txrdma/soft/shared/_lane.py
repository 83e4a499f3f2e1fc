"""
The data path of two reliable queue pairs on one host.

Implements InfiniBand Architecture vol. 1, 9.7 (reliable connections) without packets. Nothing here makes a
system call; L{txrdma.soft.shared.sharedmemoryport} has the sockets.

Theory of operation. A SEND is a record in a ring that its receiver consumes into a posted receive; an RDMA
WRITE is one copy into the peer's mapped memory. L{txrdma.soft.shared._layout} describes the ring. A lane has
two halves, L{LaneSender <txrdma.soft.shared._outgoing.LaneSender>} and L{LaneReceiver
<txrdma.soft.shared._incoming.LaneReceiver>}. This module starts, times out and closes them together, and has
the fast path for messages without work requests.

Before C{attach} the lane has only its local box: requests wait, and time out if the peer never connects. Then
both sides poll; a side that sleeps publishes that in its wake word, and the other one rings a doorbell, or
nudges it (C{nudged}). Nothing is acknowledged by messages: each side reads the position up to which the peer
has consumed. If the peer ends (C{peerEnded}), records that it has written are consumed first; then
outstanding requests fail. Closing is final and idempotent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Sized
from math import inf
from typing import Any, Final, TYPE_CHECKING

from txrdma.error import InvalidRequest
from txrdma.iba.times import ackTimeoutSeconds, rnrTimerSeconds
from txrdma.iba.types import RKey
from txrdma.iba.verbs import (
    AsyncEventKind,
    Completion,
    CompletionOpcode,
    Operation,
    QPState,
    ReceiveRequest,
    SendRequest,
    Status,
)
from txrdma.soft.core.roundtrip import SHORTEST_TIMEOUT
from txrdma.soft.shared._incoming import IDLE_POLLS, LaneReceiver, UNCOMPLETED_SENDS
from txrdma.soft.shared._layout import (
    CLOSED_SERVICES,
    CONSUMED,
    FIRST,
    LaneServices,
    LINE,
    PLAIN_SOLICITED,
    RECEIVE_QUEUE,
    RemoteRegion,
    ringBytes,
    STALLED,
    WAKE,
    Wake,
)
from txrdma.soft.shared._outgoing import FOR_EVER, LaneSender
from txrdma.soft.shared._wakeups import WAKES_SENDER
from txrdma.unix.fences import acquire, barrier, ORDERED, release

if TYPE_CHECKING:
    from txrdma.soft.core.queuepair import SoftQueuePair

_SEND: Final = CompletionOpcode.SEND
_SENDS: Final = Wake.SENDS
_SUCCESS: Final = Status.SUCCESS
_POLL_AGAIN: Final = 0.01

# Names of this module are found sooner, when it is compiled.
_ORDERED: Final[bool] = ORDERED
_acquire: Final = acquire
_release: Final = release


class Lane:
    """
    Both directions of one queue pair over shared memory: a L{Route <txrdma.soft.core.route.Route>}.

    @ivar regions: the peer's memory, as far as it is known; None for a key that was refused.
    """

    __slots__ = (
        *("_canPut", "_first", "_header", "_incoming", "_length", "_outgoing", "_owner", "_remote"),
        *("_rings", "_services", "_since", "_size", "_step", "_unpack", "_unread", "_wake", "_wakeups"),
        *("doorbell", "regions"),
    )

    name = "shared-memory"
    polled = True
    rewinds = 0

    def __init__(
        self, owner: SoftQueuePair, services: LaneServices, box: memoryview, shared: bool = False
    ) -> None:
        self._owner = owner
        self._services: LaneServices = services
        self._outgoing = outgoing = LaneSender(owner, services, box)
        self._incoming = LaneReceiver(owner, outgoing, shared)
        self._rings = outgoing.rings
        self._wakeups = outgoing.wakeups
        self._remote = remote = outgoing.remote
        self._since: tuple[int, float] | None = None  # what the timeout is for, and when it began
        self._wake: Callable[[], None] | None = None  # while it is dormant
        # Messages without work requests, all of one length (see openLane).
        self._canPut = False
        self._header = 0  # of their records
        self._first = 0  # the first number that C{_unpack} returns for a valid message
        self._length = 0  # bytes of a message
        self._size = LINE  # bytes of a record with a message; C{_step} is in words
        self._step = LINE // 8
        self._unread: Sized = ()  # queued completions, which are older than the ring
        self.doorbell = 0
        self._unpack: Callable[[Any, int], tuple[int, ...]]
        self.regions = remote.regions

    @property
    def direct(self) -> Lane | None:
        return self

    def attach(self, box: memoryview) -> None:
        """Start reading the peer's box; raises ValueError if it is invalid."""
        ringBytes(len(box))
        self._rings.read(box, FIRST)
        self._outgoing.isLinked = True
        self._since = None
        self.attributesChanged()
        self._outgoing.resume()

    def attributesChanged(self) -> None:
        self._outgoing.attributesChanged()
        isReady = self._owner.attributes.state is QPState.RTS
        if isReady:
            self._incoming.establish()
        self._canPut = isReady and self._header > 0

    def post(self, requests: Sequence[SendRequest]) -> None:
        if self._wake is not None:
            self._wake()
            if requests[0].operation is Operation.SEND:  # RDMA may complete before the peer reads the ring
                self._rings.rewind()
        self._outgoing.post(requests)

    def poll(self) -> None:
        self._incoming.poll()

    def receivesPosted(self) -> None:
        self._incoming.receivesPosted()

    def isPlaced(self) -> bool:
        return self._outgoing.isPlaced()

    def isConsumed(self) -> bool:
        return self._outgoing.isConsumed()

    def nudged(self) -> None:
        """Poll on behalf of the peer, and resume requests that wait for it."""
        self.poll()
        barrier()  # a peer that reads the local position from here on does not nudge again: poll once more
        self.poll()
        outgoing = self._outgoing
        if outgoing.isLinked and outgoing.isSuspended:
            outgoing.resume()

    def arm(self, sends: bool, receives: bool, solicitedOnly: bool) -> None:
        """Request wakeups for completions of these kinds; poll once after this."""
        if self._outgoing.isClosed:
            return
        wakeups = self._wakeups
        wakeups.armed = (Wake.SENDS if sends else 0) | (
            (Wake.SOLICITED if solicitedOnly else Wake.RECEIVES) if receives else 0
        )
        wakeups.publish()
        if sends and self._outgoing.outstanding and self._rings.peerWords[WAKE] & 3 == Wake.SOLICITED:
            self._services.nudge()  # an unsolicited message would not wake it

    def activity(self) -> int:
        outgoing, incoming, rings = self._outgoing, self._incoming, self._rings
        if (
            not outgoing.isLinked
            or outgoing.isSuspended
            or outgoing.outstanding
            or incoming.isUnannounced
            or incoming.targets is not None
            or rings.peerWords[rings.readIndex]
        ):
            return -1
        return incoming.consumed + rings.produced

    def setDormant(self, wake: Callable[[], None] | None) -> None:
        self._wake = wake

    def trim(self) -> bool:
        return self._incoming.trim()

    def prepare(self, rkey: RKey, known: Callable[[], None]) -> None:
        self._remote.prepare(rkey, known)

    def offer(self, rkey: RKey) -> None:
        self._services.offerRegion(rkey)

    def targetOf(self, rkey: RKey, address: int, length: int) -> tuple[memoryview, memoryview] | None:
        return self._remote.targetOf(rkey, address, length)

    def wants(self, rkey: RKey) -> bool:
        return self._remote.wants(rkey)

    def regionKnown(self, rkey: RKey, region: RemoteRegion | None, access: int) -> None:
        if self._remote.known(rkey, region, access):
            self._outgoing.resume()

    def accessed(self, allowed: bool) -> None:
        if self._remote.accessed(allowed):
            self._outgoing.resume()

    def peerEnded(self, event: AsyncEventKind | None) -> None:
        """Handle the end of the peer; with an C{event} fail at once, even when nothing is outstanding."""
        outgoing, incoming = self._outgoing, self._incoming
        before = -1
        while not outgoing.isClosed and before != incoming.consumed:
            before = incoming.consumed
            self.poll()
        if not outgoing.isClosed and outgoing.isLinked:
            outgoing.peerConsumed(self._rings.peerWords[CONSUMED])
        if outgoing.isClosed:
            return
        outgoing.peerEnded()
        incoming.targets = None
        self._rings.detach()
        self._remote.close()
        if outgoing.outstanding or outgoing.waiting or event is not None:
            outgoing.fail(Status.RETRY_EXC_ERR, event)

    def hasPeerEnded(self) -> bool:
        return self._outgoing.hasPeerLeft

    def isPeerPolling(self) -> bool:
        return self._outgoing.isLinked and not self._rings.peerWords[WAKE]

    def flush(self) -> list[tuple[int, CompletionOpcode]]:
        left, begun = self._end()
        if begun is not None:
            owner = self._owner
            status, opcode = Status.WR_FLUSH_ERR, CompletionOpcode.RECEIVE
            owner.receiveCompleted(Completion(begun.identifier, status, opcode, owner.number), True)
        return left

    def migrate(self) -> None:
        raise InvalidRequest("shared memory has no alternate path")

    def close(self) -> None:
        self._end()

    def _end(self) -> tuple[list[tuple[int, CompletionOpcode]], ReceiveRequest | None]:
        """Release all resources; return uncompleted requests, and the partly filled receive."""
        outgoing, rings = self._outgoing, self._rings
        if outgoing.isClosed:
            return [], None
        services, self._services = self._services, CLOSED_SERVICES
        left: list[tuple[int, CompletionOpcode]] = []
        begun = None
        try:
            try:
                left = outgoing.close()
                begun = self._incoming.close()
                rings.close()
                outgoing.leave()
            finally:
                services.left()
        except Exception:
            self._owner.raised()
        return left, begun

    # Fast path, once per message and direction: txrdma.interfaces.IDirectLane.

    def openLane(
        self,
        length: int,
        first: int,
        unpack: Callable[[Any, int], tuple[int, ...]],
    ) -> Sized:
        self._header = PLAIN_SOLICITED << 24 | length
        self._first = first
        self._size = (length + 71) & -LINE
        self._step = self._size >> 3
        self._length = length
        self._unpack = unpack
        self._unread = self._owner.laneOpened()
        self._incoming.expect(self._header)
        self.attributesChanged()
        return self._unread

    def putMessage(self, identifier: int, signaled: bool, message: bytes) -> bool:
        rings = self._rings
        outgoing = self._outgoing
        out = rings.writeIndex
        after = out + self._step
        produced = rings.produced + self._size
        if outgoing.isSuspended or not self._canPut or after >= rings.localEnd or produced > rings.limit:
            return False
        owner = self._owner
        free = owner.free
        if not free:
            return False
        start = (out << 3) + 8
        rings.localBytes[start : start + self._length] = message
        words = rings.localWords
        words[after] = 0
        if not _ORDERED:
            barrier()
        words[out] = self._header  # the peer may see it from here on, so nothing below may fail
        owner.free = free - 1
        rings.writeIndex = after
        rings.produced = produced
        outgoing.outstanding.append((produced, identifier, _SEND, signaled, _SUCCESS))
        _acquire()
        _release()
        if outgoing.announcesAlways:
            outgoing.announce(True)
        else:
            wake = rings.peerWords[WAKE]
            wakeups = self._wakeups
            if wake & 3 and wake != wakeups.wokenReceives:  # as Wakeups.posted: saves two calls and a fence
                wakeups.wokenReceives = wake
                self._services.ring(RECEIVE_QUEUE)
        return True

    def takeMessages(self, limit: int) -> Sequence[tuple[int, ...]]:
        """
        Remove and return at most C{limit} messages, oldest first.

        Other records are left to C{poll}. Each poll of a link calls this, usually without messages;
        the first comparison detects that.
        """
        rings = self._rings
        incoming = self._incoming
        words = rings.peerWords
        at = rings.readIndex
        header = words[at]
        expected = incoming.expected
        # Completions in the queue are older than what is in the ring, so they come first.
        if header != expected or self._unread:
            if header and not self._unread:
                incoming.poll()  # a record of another kind
            else:
                # Nothing is here. Sends are completed only after some idle polls, because the peer writes the
                # cache line of its CONSUMED; but immediately if a reader waits for them.
                incoming.idle += 1
                armed = self._wakeups.armed
                if incoming.idle > IDLE_POLLS or armed & _SENDS or self._outgoing.isSuspended:
                    incoming.pollSends()
                elif armed and incoming.isUnannounced:  # this process is about to sleep
                    incoming.isUnannounced = False
                    _acquire()  # as barrier()
                    _release()
                    if not _ORDERED:
                        _acquire()
                        _release()
                    if words[WAKE] & WAKES_SENDER:
                        self._wakeups.consumed()
            return ()
        if not _ORDERED:
            barrier()
        # The peer may write the ring while it is read: unpack each message once, and only then check it.
        data, end, first = rings.peerBuffer, rings.peerEnd, self._first
        after = at + self._step
        message = () if after > end or incoming.targets is not None else self._unpack(data, (at << 3) + 8)
        if not message or message[0] != first:
            incoming.poll()  # beyond the ring, amid a longer message, or another SEND of this length
            return ()
        found = [message]
        at = after if after != end else FIRST
        while words[at] == expected and len(found) < limit:
            if not _ORDERED:
                barrier()
            after = at + self._step
            message = () if after > end else self._unpack(data, (at << 3) + 8)
            if not message or message[0] != first:
                break
            found.append(message)
            at = after if after != end else FIRST
        # All of them are released by one store, after which the peer may overwrite them.
        rings.readIndex = at
        incoming.consumed = consumed = incoming.consumed + len(found) * self._size
        if not _ORDERED:
            barrier()
        rings.localWords[CONSUMED] = consumed
        incoming.isUnannounced = True  # announced by pollSends, or below when the peer waits
        incoming.idle = 0
        wake = words[WAKE]
        if wake and wake != self._wakeups.wokenSends and wake & WAKES_SENDER:
            incoming.announce()
        if len(self._outgoing.outstanding) >= UNCOMPLETED_SENDS:
            incoming.pollSends()
        return found

    # Waiting

    def expired(self, now: float) -> float | None:
        """
        Fail the oldest request when a peer takes too long to connect (IBA 9.7.6.1.3) or to post a receive
        (9.7.5.2.8); return the seconds until the next call.
        """
        outgoing = self._outgoing
        if outgoing.isClosed or not (outgoing.outstanding or outgoing.waiting):
            self._since = None
            return None
        if outgoing.isLinked:
            return self._notReady(now)
        attributes = self._owner.attributes
        timeout = ackTimeoutSeconds(attributes.timeout or 0)
        if timeout == inf:
            return None
        timeout = max(timeout, SHORTEST_TIMEOUT)
        return self._checkTimeout(0, now, timeout * ((attributes.retryCount or 0) + 1), Status.RETRY_EXC_ERR)

    def _notReady(self, now: float) -> float | None:
        """Fail the oldest request if the peer has not posted a receive for it in time (RNR timer)."""
        retries = self._owner.attributes.rnrRetry
        if retries is None or retries == FOR_EVER:
            return None
        self._rings.readAcknowledged()
        stalled = self._rings.peerWords[STALLED]
        if not stalled or (stalled >> 8) - 1 != self._rings.acknowledged:
            self._since = None
            return _POLL_AGAIN
        return self._checkTimeout(
            stalled >> 8, now, retries * rnrTimerSeconds(stalled & 31), Status.RNR_RETRY_EXC_ERR
        )

    def _checkTimeout(self, what: int, now: float, seconds: float, status: Status) -> float | None:
        """
        Fail the oldest request with this status after a time; return the seconds that are left until then.

        @param what: identifies what is awaited; the time begins when that changes.
        """
        outgoing = self._outgoing
        if self._since is None or self._since[0] != what:
            self._since = (what, now)
        left = self._since[1] + seconds - now
        if left > 0:
            return left
        if outgoing.isLinked:
            self._rings.readAcknowledged()
        if outgoing.completeSends() and (outgoing.outstanding or outgoing.waiting):
            outgoing.fail(status, None)
        return None
