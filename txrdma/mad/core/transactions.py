"""
Open requests: matching with answers, retries, timeouts.

Follows InfiniBand Architecture vol. 1, 13.4.6 (transaction IDs, timeouts and retries) and 13.4.7 (BUSY).
Nothing here reads a clock or a socket; see L{txrdma.mad.agent} for that.

Theory of operation. Each open request has an unpredictable transaction ID, which no other open request has,
and is in one slot of a timer wheel. At its deadline it is sent again with the same ID, as long as retries are
left. A request that was answered with BUSY pauses: its deadline then uses no retry. An ID is free as soon as
its request ends, but is unlikely to be drawn again soon, so a late answer finds no request.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Any, Final, NamedTuple

from txrdma.error import InvalidRequest, ResourceExhausted
from txrdma.iba.path import IBPath
from txrdma.kit.deadlines import Slot, TimerWheel
from txrdma.mad.core.frames import Keys
from txrdma.mad.layouts.attributes import Attribute, RPC

SLOT_SECONDS: Final = 0.01
"""Maximum lateness of a timeout in seconds."""

BUSY_PAUSE_SECONDS: Final = 0.1
"""
Seconds until a request is sent again that was answered with BUSY.

They double with each further BUSY, as long as their sum does not exceed the time for which the peer could be
silent. BUSY uses no retry, because retries are for lost datagrams; a request without retries left fails.
"""


_DRAWN: Final = 4096
"""Random bytes that are drawn at a time: drawing each one alone would take a tenth of a call's time."""

_draw: Final = Struct(f"{_DRAWN // 8}Q").unpack


class Call:
    """
    One remote procedure call: the request, the state of its transaction, and the answer or error.

    Users that make very many calls subclass it: L{answered} or L{failed} is called once, at its end.

    @ivar kind: class of the answer's payload.
    @ivar content: the payload of the request, as bytes.
    @ivar chosenID: the transaction ID that the caller has chosen; 0 for a drawn one.
    @ivar redirections: number of redirections of this call, and of the call for which it is made.
    @ivar answer: the answer, when the call has succeeded.
    @ivar error: the reason, when the call has failed; else None.
    @ivar forget: cancels the call; set by agents.
    @ivar identifier: the low bits of the transaction ID, which answers contain unchanged.
    @ivar busyTimes: number of pauses after BUSY.
    @ivar deadline: time at which the request is sent again, or fails.
    """

    __slots__ = (
        *("answer", "chosenID", "content", "error", "forget", "keys", "kind", "mask", "modifier"),
        *("redirections", "rpc"),
        *("busyTimes", "datagram", "deadline", "identifier", "slot", "path", "retriesLeft"),
        "timeoutSeconds",
    )

    busyTimes: int
    datagram: bytes
    deadline: float
    forget: Callable[[Call], None]
    identifier: int
    slot: Slot[Call]
    path: IBPath
    retriesLeft: int
    timeoutSeconds: float

    def __init__(
        self, rpc: RPC, kind: type[Attribute], content: bytes, modifier: int, keys: Keys, mask: int
    ) -> None:
        self.rpc = rpc
        self.kind = kind
        self.content = content
        self.modifier = modifier
        self.keys = keys
        self.mask = mask
        self.chosenID = 0
        self.redirections = 0
        self.answer: Any = None
        self.error: Exception | None = None

    def answered(self, answer: Any) -> None:
        """The call has succeeded."""

    def failed(self, error: Exception) -> None:
        """The call has failed."""


class Due(NamedTuple):
    """Calls whose deadline has passed: those to retransmit, and those that failed."""

    again: list[Call]
    late: list[Call]


class Transactions:
    """
    The open calls of one port.

    @ivar open: requests by their transaction ID: its bits within C{mask}, which ports leave unchanged.
    @ivar begun: number of requests so far.
    @ivar late: number of time-outs of requests.
    @ivar repeated: number of retransmissions.
    """

    def __init__(self, bits: int, random: Callable[[int], bytes]) -> None:
        """
        @param bits: number of low bits of a transaction ID that answers contain unchanged.
        @param random: returns this many unpredictable bytes: predictable IDs would let others forge answers.
        """
        self.mask = (1 << bits) - 1
        self._random = random
        self._drawn: list[int] = []
        self.open: dict[int, Call] = {}
        self.begun = self.late = self.repeated = 0
        self._wheel: TimerWheel[Call] = TimerWheel(SLOT_SECONDS)
        self._pausing: dict[int, Call] = {}

    def __len__(self) -> int:
        return len(self.open)

    def newIdentifier(self) -> int:
        """
        A transaction ID that no open request has, and that is not 0.

        @raise ResourceExhausted: there is none left.
        """
        # Unforeseeable, so that only who sees a request can answer it. Many are drawn at a time, since each
        # call of urandom takes longer than the rest of a request.
        while True:
            if not self._drawn:
                self._refill()
            identifier = self._drawn.pop() & self.mask
            if identifier and identifier not in self.open:
                return identifier

    def _refill(self) -> None:
        if len(self.open) >= self.mask:
            raise ResourceExhausted(f"{len(self.open)} calls are open: no transaction ID is left")
        self._drawn.extend(_draw(self._random(_DRAWN)))

    def check(self, identifier: int) -> None:
        """
        Check that a transaction ID chosen by a caller can be used.

        @raise InvalidRequest: the ID is too large, in use, or 0.
        """
        if not 0 < identifier <= self.mask:
            bits = self.mask.bit_length()
            raise InvalidRequest(
                f"transaction IDs of this port have {bits} bits, and are not {identifier:#x}"
            )
        if identifier in self.open:
            raise InvalidRequest(f"transaction {identifier:#x} is open already")

    def begin(self, transaction: Call, now: float) -> None:
        """Open a request, whose datagram, path and timeout are set."""
        identifier = transaction.identifier
        transaction.busyTimes = 0
        deadline = transaction.deadline = now + transaction.timeoutSeconds
        self.open[identifier] = transaction
        self.begun += 1
        transaction.slot = self._wheel.add(identifier, transaction, deadline)

    def find(self, identifier: int) -> Call | None:
        """Open request with this transaction ID; None without one."""
        return self.open.get(identifier & self.mask)

    def end(self, transaction: Call) -> None:
        """Close a request, because it is answered or has failed."""
        identifier = transaction.identifier
        if self.open.get(identifier) is transaction:
            del self.open[identifier]
            transaction.slot.pop(identifier, None)
            if self._pausing:
                self._pausing.pop(identifier, None)

    def busy(self, transaction: Call, now: float) -> bool:
        """Postpone a request that was answered with BUSY; False if it has waited for too long."""
        if transaction.identifier in self._pausing:
            return True  # a duplicate of the BUSY response
        pause = BUSY_PAUSE_SECONDS * (1 << transaction.busyTimes)
        # Pauses double; twice the next one, less the first, is the sum of all of them.
        limit = transaction.timeoutSeconds * (transaction.retriesLeft + 1)
        if transaction.retriesLeft == 0 or 2 * pause - BUSY_PAUSE_SECONDS > limit:
            return False
        transaction.busyTimes += 1
        self._pausing[transaction.identifier] = transaction
        self.extend(transaction, now + pause)
        return True

    def extend(self, transaction: Call, deadline: float) -> None:
        """Move the deadline of a request."""
        identifier = transaction.identifier
        transaction.slot.pop(identifier, None)
        transaction.deadline = deadline
        transaction.slot = self._wheel.add(identifier, transaction, deadline)

    def undeliverable(self, transaction: Call, now: float) -> Due:
        """End the wait for a request that could not be delivered: it is due at once."""
        due: Due = Due([], [])
        self._late(transaction, now, due)
        return due

    def expired(self, now: float) -> Due:
        """Requests whose deadline has passed; called at the time of L{deadline}."""
        due: Due = Due([], [])
        for transaction in self._wheel.expired(now):
            self.late += transaction.identifier not in self._pausing
            self._late(transaction, now, due)
        return due

    def deadline(self) -> float | None:
        """Time at which to call L{expired}; None for never."""
        return self._wheel.deadline() if self.open else None

    def clear(self) -> list[Call]:
        """Close all requests, and return them."""
        left = list(self.open.values())
        self.open.clear()
        self._pausing.clear()
        self._wheel.clear()
        return left

    def _late(self, transaction: Call, now: float, due: Due) -> None:
        wasBusy = self._pausing.pop(transaction.identifier, None) is not None
        if wasBusy or transaction.retriesLeft > 0:
            transaction.retriesLeft -= not wasBusy  # a pause after BUSY is not a loss
            self.repeated += 1
            self.extend(transaction, now + transaction.timeoutSeconds)
            due.again.append(transaction)
        else:
            self.end(transaction)
            due.late.append(transaction)
