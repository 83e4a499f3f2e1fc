"""
The data path of two reliable queue pairs on one host.

Keeps the promises of InfiniBand Architecture vol. 1, 9.7 (reliable connections) without packets: a SEND is a
record in a ring that its receiver consumes into a posted receive; an RDMA WRITE is one copy into the peer's
mapped memory. L{txrdma.soft.shared._layout} tells how that memory looks, L{txrdma.soft.shared._sending} and
L{txrdma.soft.shared._receiving} are the two halves; here is how they begin, wait and end. Nothing here makes
a system call; see L{txrdma.soft.shared.routes} for the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Sized
from math import inf
from typing import Any, Final

from txrdma.error import InvalidRequest
from txrdma.iba.times import ackTimeoutSeconds, rnrTimerSeconds
from txrdma.iba.types import RKey
from txrdma.iba.verbs import (
    AsyncEventKind,
    Completion,
    CompletionOpcode,
    QPState,
    Status,
)
from txrdma.soft._patience import SHORTEST_TIMEOUT
from txrdma.soft._route import Owner
from txrdma.soft.shared._layout import (
    acquire,
    barrier,
    COMPLETION_OF,
    CONSUMED,
    FIRST,
    LINE,
    ORDERED,
    PLAIN_SOLICITED,
    release,
    ringBytes,
    STALLED,
    Surroundings,
    WAKE,
    Wake,
)
from txrdma.soft.shared._receiving import IDLE, PATIENCE, Receiving, WAKES_SENDER
from txrdma.soft.shared._sending import FOR_EVER

_RECEIVE: Final = CompletionOpcode.RECEIVE
_SEND: Final = CompletionOpcode.SEND
_SUCCESS: Final = Status.SUCCESS
_LOOK_AGAIN: Final = 0.01


def _packNothing(buffer: memoryview, offset: int, *values: int) -> None:
    """The lane is not open."""


def _unpackNothing(buffer: Any, offset: int) -> tuple[int, ...]:
    """The lane is not open."""
    return ()


class Lane(Receiving):
    """Both directions of one queue pair over shared memory: a L{Route <txrdma.soft._route.Route>}."""

    __slots__ = (
        "__weakref__",
        "_canPut",
        "_expected",
        "_first",
        "_messageHeader",
        "_pack",
        "_parked",
        "_size",
        "_unpack",
        "_unread",
    )

    name = "shared-memory"
    polled = True

    def __init__(
        self, owner: Owner, surroundings: Surroundings, box: memoryview, shared: bool = False
    ) -> None:
        """
        @param shared: others take from the owner's receives, too.
        """
        super().__init__(owner, surroundings, box, shared)
        self._parked: tuple[memoryview, int] | None = None  # where we read, while our port is down
        # Messages that need no work requests: see txrdma.interfaces.IDirectLane.
        self._canPut = False
        self._messageHeader = 0
        self._expected = -1  # no header is like that: C{takeMessages} takes nothing yet
        self._first = 0
        self._size = LINE  # of a record with such a message
        self._unread: Sized = ()
        self._pack: Callable[..., None] = _packNothing
        self._unpack: Callable[[Any, int], tuple[int, ...]] = _unpackNothing

    @property
    def placing(self) -> Lane | None:
        """The lane itself places: what it sends stands in memory that the peer has mapped."""
        return self

    @property
    def direct(self) -> Lane | None:
        """The lane itself takes messages without work requests."""
        return self

    @property
    def wantsNotes(self) -> bool:
        """Whether the peer is to tell us of each access to our memory."""
        return False

    def attach(self, box: memoryview, notes: bool = False) -> None:
        """
        The peer's box has come: begin.

        @param notes: the peer wants a note of each access to its memory.
        @raise ValueError: this is none.
        """
        ringBytes(len(box))
        self._notes = notes
        self._parked = box, FIRST
        if not self._down:
            self._go()

    def attributesChanged(self) -> None:
        """Timers, counters or the state are others now."""
        super().attributesChanged()
        self._canPut = self._messageHeader > 0 and self._owner.attributes.state is QPState.RTS

    def _establish(self) -> None:
        super()._establish()
        if self._messageHeader:
            self._expected = self._messageHeader

    def _go(self) -> None:
        """Read where the peer writes, and carry out what waits."""
        parked, self._parked = self._parked, None
        if parked is not None:
            self._read(*parked)
            self._linked = True
            self._since = None
            self.attributesChanged()
            self._resume()

    def setEnabled(self, isEnabled: bool) -> None:
        """Our port went down, or is up again: what is down neither sends nor takes anything."""
        if self._dead or self._down is not isEnabled:
            return
        self._down = not isEnabled
        if isEnabled:
            self._sayWake()
            self._unsaid = True
            self._go()
            self.poll()
            self._lookBack()
            return
        if self._linked:
            self._settle(self._inWords[CONSUMED])
            if self._dead:
                return
            self._parked = self._inBytes, self._at
            self._linked = False
            self._detach()
        self._held = True
        self._since = None
        self._sayWake()
        self._surroundings.watch()

    def nudged(self) -> None:
        """The peer asks us to look: what it wants, what it has done, whether its port is up."""
        self.poll()
        barrier()  # who sees by now that we have not come so far does not ask again: what it wants is there
        self.poll()
        if self._dead or not self._linked:
            return
        if self._inWords[WAKE] & Wake.DOWN:
            self._surroundings.watch()
        elif self._held:
            self._resume()

    def arm(self, sends: bool, receives: bool, solicitedOnly: bool) -> None:
        """Be woken for these from now on; look once more after this."""
        if self._dead:
            return
        self._armed = (Wake.SENDS if sends else 0) | (
            (Wake.SOLICITED if solicitedOnly else Wake.RECEIVES) if receives else 0
        )
        self._sayWake()
        if sends and self._outstanding and self._inWords[WAKE] & 3 == Wake.SOLICITED:
            self._surroundings.nudge()  # it would not look at what is not solicited

    def peerGone(self, event: AsyncEventKind | None) -> None:
        """
        The peer's queue pair, or its whole process, is no more.

        @param event: fail at once, and tell this, even when nothing is outstanding.
        """
        before = -1
        while not self._dead and before != self._consumed:
            before = self._consumed
            self.poll()
        if not self._dead and self._linked:
            self._settle(self._inWords[CONSUMED])
        if self._dead:
            return
        self._gone = self._held = True
        self._detach()
        self._parked = None
        self._targets = None
        self.regions.clear()
        self._atomics.clear()
        self._linked = False
        self._stopPreparing()
        if self._outstanding or self._waiting or event is not None:
            self._fail(Status.RETRY_EXC_ERR, event)

    def flush(self) -> list[tuple[int, CompletionOpcode]]:
        """Stop; what is not completed, oldest first."""
        left = [(identifier, opcode) for _, identifier, opcode, _, _ in self._outstanding]
        left += [(request.identifier, COMPLETION_OF[request.operation]) for request in self._waiting]
        begun, self._begun = self._begun, None
        self.close()
        if begun is not None:
            flushed = Completion(begun.identifier, Status.WR_FLUSH_ERR, _RECEIVE, self._number)
            self._deliver(flushed, True)
        return left

    def migrate(self) -> None:
        """
        There is no other path.

        @raise InvalidRequest: always.
        """
        raise InvalidRequest("shared memory has no alternate path")

    def close(self) -> None:
        """Let go of all memory. Twice is fine."""
        if self._dead:
            return
        if self._linked and self._inWords[WAKE] & Wake.DOWN:
            # It must not find what we shall never send again.
            self._outWords[FIRST + ((self._inWords[CONSUMED] & self._ring - 1) >> 3)] = 0
        self._dead = self._held = True
        self._linked = False
        self._outstanding.clear()
        self._waiting.clear()
        self._atomics.clear()
        self._parked = None
        self._targets = None
        self._begun = None
        self._outWords[WAKE] = 0
        self._detach()
        self.regions.clear()
        self._stopPreparing()
        self._ready.clear()
        self._outBytes = self._outWords = memoryview(b"")
        self._surroundings.left()

    # Messages without work requests: see txrdma.interfaces.IDirectLane.

    def openLane(
        self,
        length: int,
        first: int,
        pack: Callable[..., None],
        unpack: Callable[[Any, int], tuple[int, ...]],
    ) -> None:
        """Have messages of this layout brought by C{takeMessages} from now on."""
        self._messageHeader = PLAIN_SOLICITED << 24 | length
        self._first = first
        self._size = (length + 71) & -LINE
        self._pack = pack
        self._unpack = unpack
        self._unread = self._owner.laneOpened()
        self.attributesChanged()

    def targetOf(self, rkey: RKey, address: int, length: int) -> tuple[memoryview, memoryview] | None:
        """The peer's memory itself, and the word that is 1 as long as it may be written to."""
        region = self.regions.get(rkey)
        if region is None or region.writable is None:
            return None
        offset = address - region.address
        if offset < 0 or offset + length > region.length:
            return None
        return region.writable[offset : offset + length], region.valid

    def putMessage(self, identifier: int, signaled: bool, *values: int) -> bool:
        """Send one message now; False when it has to be posted."""
        out = self._out
        size = self._size
        after = out + (size >> 3)
        produced = self._produced + size
        owner = self._owner
        if self._held or not self._canPut or after >= self._outEnd or produced > self._limit:
            return False
        free = owner.free
        if not free:
            return False
        owner.free = free - 1
        self._pack(self._outBytes, (out << 3) + 8, *values)
        words = self._outWords
        words[after] = 0
        if not ORDERED:
            barrier()
        words[out] = self._messageHeader
        self._out = after
        self._produced = produced
        self._outstanding.append((produced, identifier, _SEND, signaled, _SUCCESS))
        acquire()
        release()
        wake = self._inWords[WAKE]
        if self._attentive or (wake and (wake != self._rungReceives or wake & Wake.DOWN)):
            self._announce(True)
        return True

    def takeMessages(self, limit: int) -> Sequence[tuple[int, ...]]:
        """
        Take at most C{limit} messages, oldest first.

        Whatever else has come goes its usual way.
        """
        words = self._inWords
        at = self._at
        header = words[at]
        expected = self._expected
        if header != expected or self._unread:
            if header and not self._unread:
                self.poll()
            else:
                self._idle += 1
                if self._idle > IDLE or self._armed or self._held:
                    self._lookBack()
            return ()
        data, end, size, first = self._inRaw, self._inEnd, self._size, self._first
        found: list[tuple[int, ...]] = []
        consumed = self._consumed
        while True:
            if not ORDERED:
                barrier()
            start = (at << 3) + 8
            after = at + (size >> 3)
            if data[start] != first or after > end or self._targets is not None:
                break
            found.append(self._unpack(data, start))
            consumed += size
            at = after if after != end else FIRST
            if words[at] != expected or len(found) == limit:
                break
        if not found:
            self.poll()
            return ()
        self._at = at
        self._consumed = consumed
        if not ORDERED:
            barrier()
        self._outWords[CONSUMED] = consumed
        self._unsaid = True  # until there is time, unless somebody waits for it
        self._idle = 0
        wake = words[WAKE]
        if wake and wake != self._rungSends and wake & WAKES_SENDER:
            self._sayConsumed()
        if len(self._outstanding) >= PATIENCE:
            self._lookBack()
        return found

    # Waiting

    def expired(self, now: float) -> float | None:
        """
        See whether the peer takes too long: to come (IBA 9.7.6.1.3), or to post a receive (9.7.5.2.8).

        While our port or the peer's is down nothing comes.

        @return: in how many seconds to look again; None when there is nothing to wait for.
        """
        if self._dead or not (self._outstanding or self._waiting):
            self._since = None
            return None
        if self._linked and not self._inWords[WAKE] & Wake.DOWN:
            if self._since is not None and self._since[0] == 0:
                self._since = None  # it was not there, or its port was down: now it is back
            return self._notReady(now)
        attributes = self._owner.attributes
        timeout = ackTimeoutSeconds(attributes.timeout or 0)
        if timeout == inf:
            return None
        timeout = max(timeout, SHORTEST_TIMEOUT)
        return self._patience(0, now, timeout * ((attributes.retryCount or 0) + 1), Status.RETRY_EXC_ERR)

    def _notReady(self, now: float) -> float | None:
        retries = self._owner.attributes.rnrRetry
        if retries is None or retries == FOR_EVER:
            return None
        self._refresh()
        stalled = self._inWords[STALLED]
        if not stalled or (stalled >> 8) - 1 != self._acknowledged:
            self._since = None
            return _LOOK_AGAIN
        return self._patience(
            stalled >> 8, now, retries * rnrTimerSeconds(stalled & 31), Status.RNR_RETRY_EXC_ERR
        )

    def _patience(self, what: int, now: float, seconds: float, status: Status) -> float | None:
        if self._since is None or self._since[0] != what:
            self._since = (what, now)
        left = self._since[1] + seconds - now
        if left > 0:
            return left
        if self._linked:
            self._refresh()
        if self._retire() and (self._outstanding or self._waiting):
            self._fail(status, None)
        return None
