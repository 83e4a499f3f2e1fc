"""
The interface between a queue pair and the route that moves its bytes.

There are three routes: RoCE v2 by UDP, shared memory on the same host, and datagrams.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence, Sized
from typing import Protocol, TYPE_CHECKING

from txrdma.iba.types import QPN, RKey
from txrdma.iba.verbs import (
    AsyncEventKind,
    Completion,
    CompletionOpcode,
    MigrationState,
    QPAttributes,
    QPKind,
    ReceiveRequest,
    SendRequest,
)

if TYPE_CHECKING:
    from txrdma.soft.core.memory import Domain, KeyTable


class Owner(Protocol):
    """
    The queue pair, as its route sees it.

    @ivar receives: the receive queue; a route takes from the left what it fills. Queue pairs with a shared
        receive queue have one and the same.
    @ivar free: places in the send queue that nothing takes.
    """

    kind: QPKind
    number: QPN
    attributes: QPAttributes
    keys: KeyTable
    domain: Domain
    receives: deque[ReceiveRequest]
    free: int

    def retired(self, count: int) -> None:
        """Free the places of that many requests, which have left the send queue; the oldest go first."""

    def sendCompleted(self, completion: Completion) -> None:
        """
        Put it in the send completion queue: for signaled requests and for failed ones, in order.

        The place in the queue is given back by C{retired}, separately.
        """

    def receiveCompleted(self, completion: Completion, solicited: bool) -> None:
        """Put the completion of a filled receive into the receive completion queue."""

    def failed(self, event: AsyncEventKind | None = None) -> None:
        """
        The connection can't go on: the queue pair goes to ERR and everything left is flushed.

        A send that caused it has had its own C{sendCompleted} before.
        """

    def told(self, event: AsyncEventKind) -> None:
        """Listeners want to hear this, and the queue pair goes on: C{COMMUNICATION_ESTABLISHED}."""

    def laneOpened(self) -> Sized:
        """
        Messages are taken from the route itself: the receives' completion queue does not look at it any more.

        @return: the completions in that queue, which come first.
        """

    def migrationChanged(self, state: MigrationState) -> None:
        """
        The route has got from REARM to ARMED, or from ARMED to MIGRATED (IBA 17.2.8).

        With MIGRATED the alternate path of C{attributes} has become the path, and listeners hear of it.
        """


class Placing(Protocol):
    """A route through memory that the peer has mapped: see L{txrdma.interfaces.IPlacing}."""

    def prepare(self, rkey: RKey, known: Callable[[], None]) -> None:
        """Find out how the peer's memory with this key is reached."""

    def isPlaced(self) -> bool:
        """Whether everything that was posted stands in the peer's memory."""

    def isPeerGone(self) -> bool:
        """Whether the peer's queue pair, or its process, is known to be no more."""


class Route(Protocol):
    """
    The way of the bytes of one queue pair, from RTR until C{close}.

    @ivar polled: whether C{poll} and C{arm} do anything: completion queues call them for such routes only.
    """

    name: str
    polled: bool

    @property
    def placing(self) -> Placing | None:
        """The route itself, where what it sends outlives this process; None elsewhere."""

    def post(self, requests: Sequence[SendRequest]) -> None:
        """
        Carry these out, in order, after those before.

        They have the right form for the queue pair; keys are the route's to check. Called only in RTS.
        C{inline} data is taken before this returns; for C{segments} the request object is ours no more, so
        what is needed of it is taken, too.
        """

    @property
    def direct(self) -> object | None:
        """The route itself, where it provides L{txrdma.interfaces.IDirectLane}; None elsewhere."""

    def receivesPosted(self) -> None:
        """The receive queue has grown."""

    def poll(self) -> None:
        """Look for what has arrived or completed: nobody tells, or not yet."""

    def arm(self, sends: bool, receives: bool, solicitedOnly: bool) -> None:
        """
        Have the channel's descriptor woken: by the next completed send, by the next receive.

        All False: somebody looks by C{poll}, don't wake.
        """

    def flush(self) -> list[tuple[int, CompletionOpcode]]:
        """
        Stop; the identifiers and kinds of what is not completed, oldest first.

        No request is sent after this.
        """

    def attributesChanged(self) -> None:
        """C{modify} has changed timers, counters, the state, the alternate path, or REARM was asked for."""

    def migrate(self) -> None:
        """
        Take the alternate path of C{attributes} now, and have the peer take it; C{migrationChanged} follows.
        """

    def close(self) -> None:
        """Let go. Twice is fine."""


class Resting(Protocol):
    """A port whose peers lose nothing while nobody looks: see L{txrdma.interfaces.IRestingDevice}."""

    def rest(self) -> None:
        """Leave the reactor. Twice is fine."""

    def wake(self) -> None:
        """Be part of the reactor, again or still."""


class RoutePort(Protocol):
    """The local end of all routes of one device: its UDP socket, or its UNIX socket."""

    @property
    def resting(self) -> Resting | None:
        """The port itself, where it may rest; None where a peer needs an answer."""

    def connect(self, owner: Owner) -> Route | None:
        """
        The route for a queue pair that goes to RTR, by its C{kind} and C{attributes}.

        @return: None when there is no way of this sort to that destination.
        @raise txrdma.error.RDMAError: there should be, but it can't be had.
        """

    def drive(self) -> bool:
        """
        Take in what has come and no queue finds, though the reactor has ended.

        @return: whether a peer has still to acknowledge something.
        """

    def setEnabled(self, isEnabled: bool) -> None:
        """
        The port was taken down, or up again, by command.

        While it is down nothing goes out and nothing comes in; connections have their usual patience.
        """

    def close(self) -> None:
        """Close the socket; the routes were closed before. Twice is fine."""
