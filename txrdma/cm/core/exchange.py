"""
Exchanges of messages: retransmission until an answer arrives, and the base class of all cores.

Follows InfiniBand Architecture vol. 1, 12.9.8 (timeouts and retries) and 12.6.6 (MRA).

Theory of operation. Datagrams may be lost, so a message that needs an answer is stored (C{_again}) with a
deadline and a number of retries. A deadline with retries left is the input C{expired} of the core's state
machine, the last one is C{exhausted}; an MRA of the peer moves the deadline. The last message of an exchange
(RTU, DREP, APR, SIDR_REP) has no deadline: it is sent again when a duplicate of what it answers arrives. So
at most one message of a core is outstanding.

A core's state machine is a table of rows. A state ignores messages for which it has no row, so late and
duplicate messages are harmless; a request of the application without a row raises L{InvalidRequest}, unless
the end of the exchange was reported before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from txrdma.cm.core.events import Event
from txrdma.cm.layouts.messages import CMPath
from txrdma.cm.layouts.paths import lifeTimeOf
from txrdma.error import InvalidRequest
from txrdma.iba.path import lifetimeSeconds
from txrdma.kit.machines import MachineCore, StateTable
from txrdma.kit.values import frozen
from txrdma.kit.wire import Layout

LONGEST_SERVICE: Final = 24
"""The encoded time that MRAs of this end request: 68.7 seconds, as in Linux's rdma_cm."""

LONGEST_DELAY: Final = 60.0
"""Seconds after a message within which MRAs of the peer can delay its retransmission."""

LONGEST_RESPONSE: Final = 22
"""The longest encoded time that a peer's REQ can make this end wait for it or its packets: 17 seconds."""

LOW_BITS: Final = 0xFFFFFFFF
"""Bits of a transaction ID by which messages are matched: Linux's umad uses the bits above them."""


@frozen
class RetryPolicy:
    """
    Time-outs and number of retransmissions.

    @ivar responseTimeout: maximum response time of the peer's CM, encoded.
    @ivar lifeTime: packet lifetime of the path, encoded.
    """

    responseTimeout: int
    lifeTime: int
    retries: int

    @property
    def seconds(self) -> float:
        """The time from a message to its retransmission: both packet lifetimes and the response time."""
        return lifetimeSeconds(min(self.responseTimeout, LONGEST_RESPONSE)) + self._roundTripSeconds

    def service(self, code: int) -> float:
        """The time that a peer's MRA with this service timeout requests, in seconds."""
        return lifetimeSeconds(code) + self._roundTripSeconds

    @property
    def _roundTripSeconds(self) -> float:
        return 2 * lifetimeSeconds(min(self.lifeTime, LONGEST_RESPONSE))

    def by(self, path: CMPath) -> RetryPolicy:
        """Return the policy with the same response timeout and retries for another path."""
        return RetryPolicy(self.responseTimeout, lifeTimeOf(path), self.retries)


@frozen
class OutgoingMAD:
    """
    A message to send in a transaction.

    @ivar isAgain: the same message was sent before, in this transaction.
    """

    message: Layout
    transactionID: int
    isAgain: bool = False


class _Over:
    """The inputs of a machine that has ended: all of them are ignored."""

    def __getattr__(self, name: str) -> Callable[[], None]:
        return _ignore


def _ignore() -> None:
    """Do nothing."""


_OVER: Final = _Over()


class ExchangeCore(MachineCore):
    """
    Base class of all cores here: a state machine's data, with a message that waits for an answer.

    @ivar deadlineSeconds: the time at which to call C{expired}; None for never.
    @ivar pendingEvents: what L{events} returns; C{pendingMessages}: what L{outgoing} returns.
    """

    __slots__ = (
        *("_again", "_delayedUntil", "_message", "_inputs", "_now", "_retryPolicy"),
        "_stateName",
        *("_retries", "_transaction", "deadlineSeconds", "pendingEvents", "pendingMessages"),
    )
    _table: StateTable[Any, Any]
    _final: frozenset[str] = frozenset()
    """Names of states in which requests of the application are ignored, since the end is reported."""

    def __init__(self, retryPolicy: RetryPolicy) -> None:
        self._retryPolicy = retryPolicy
        self.pendingEvents: tuple[Event, ...] = ()  # an empty list takes 56 bytes
        self.pendingMessages: tuple[OutgoingMAD, ...] = ()
        self._again: OutgoingMAD | None = None
        self._message: Any = None
        self._transaction = 0
        self._retries = 0
        self._now = self._delayedUntil = 0.0
        self.deadlineSeconds: float | None = None
        self._inputs: Any = self._table.begin(self)

    @property
    def state(self) -> str:
        """The state's name in the specification and the diagrams."""
        return self._stateName

    def deadline(self) -> float | None:
        return self.deadlineSeconds

    def outgoing(self) -> list[OutgoingMAD]:
        """Take the messages to send. Handle events first: a queue pair is disarmed before a LAP."""
        taken, self.pendingMessages = self.pendingMessages, ()
        return list(taken)

    def events(self) -> list[Event]:
        taken, self.pendingEvents = self.pendingEvents, ()
        return list(taken)

    def received(self, message: Layout, transactionID: int, now: float) -> bool:
        """
        Process a message of the peer for this core.

        @return: whether it was new: late and duplicate messages are not, though they may be answered.
        """
        stateName, events = self._stateName, len(self.pendingEvents)
        self._message, self._transaction, self._now = message, transactionID, now
        self._handleMessage(message)
        self._message = None
        return self._stateName != stateName or len(self.pendingEvents) > events

    def expired(self, now: float) -> None:
        if self.deadlineSeconds is None or now < self.deadlineSeconds:
            return
        self._now = now
        if self._retries > 0:
            self._retries -= 1
            self._inputs.expired()
        else:
            self._stop()
            self._inputs.exhausted()

    def free(self) -> None:
        """Release the state machine, which refers to this object, because it has ended."""
        self._inputs = _OVER

    def _handleMessage(self, message: Layout) -> None:
        raise NotImplementedError

    def _ask(self, what: str, now: float) -> bool:
        """
        Pass a request of the application to the machine.

        @return: False if the peer has ended the exchange before.
        @raise InvalidRequest: the request is not allowed in this state.
        """
        if not self._table.has(self._stateName, what):
            if self._stateName in self._final:
                return False
            raise InvalidRequest(f"{what} is not a request for the state {self._stateName}")
        self._now = now
        getattr(self._inputs, what)()
        return True

    def _emit(self, event: Event) -> None:
        self.pendingEvents += (event,)

    def _send(self, message: Layout, transactionID: int | None = None) -> OutgoingMAD:
        """Send a message once, as an answer unless a transaction is given."""
        made = OutgoingMAD(message, self._transaction if transactionID is None else transactionID)
        self.pendingMessages += (made,)
        return made

    def _sendUntilAnswered(self, message: Layout, transactionID: int) -> None:
        made = self._send(message, transactionID)
        self._again = OutgoingMAD(message, made.transactionID, True)
        self._retries = self._retryPolicy.retries
        self.deadlineSeconds = self._now + self._retryPolicy.seconds
        self._delayedUntil = self._now + LONGEST_DELAY

    def _sendAgain(self) -> None:
        assert self._again is not None  # a deadline comes with it
        self.pendingMessages += (self._again,)
        self.deadlineSeconds = self._now + self._retryPolicy.seconds

    def _stop(self) -> None:
        self._again = None
        self.deadlineSeconds = None

    def _wait(self, code: int) -> None:
        """Wait longer, within L{LONGEST_DELAY}: the peer sent an MRA with this service timeout."""
        if self._now < self._delayedUntil:
            self.deadlineSeconds = min(self._now + self._retryPolicy.service(code), self._delayedUntil)
