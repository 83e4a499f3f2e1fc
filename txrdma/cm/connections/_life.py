"""
The lifecycle of a message transport, without I/O: the order of completions, and the end of the connection.

While a protocol is paused, its messages are queued here; other completions are handled at once. A peer that
closes in order sends a DREQ when all that it sent is in this end's memory, and its queue pair is closed soon
after. From then on (DRAINING) nothing is posted, a failed request does not indicate whether earlier data has
arrived, and the connection ends when the protocol has received the last message: each message of a peer that
closed in order is delivered before C{ConnectionDone}. Only an application that closes while paused loses the
rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any, Generic, Protocol, TypeVar

from txrdma.kit.machines import MachineCore, Row, StateTable


class LifeEventKind(Enum):
    """Kinds of completions."""

    REQUEST = "request"
    """A request of this end has completed, with or without an error."""

    CREDIT = "credit"
    """The peer gives back credits."""

    MESSAGE = "message"
    """A message or a write with immediate data, for the protocol."""

    LONG = "long"
    """The name of a long message, which is read first and then delivered."""

    FAILURE = "failure"
    """A receive has failed, and so has the queue pair."""


CompletionT = TypeVar("CompletionT")


class LifeInputs(Protocol):
    """The inputs of a transport's lifecycle."""

    def close(self) -> None:
        """The program closes the connection."""

    def peerClosed(self) -> None:
        """The peer's DREQ or DREP was received, and all messages that the peer sent before it."""

    def fail(self) -> None:
        """The queue pair, or a request, has failed."""

    def drained(self) -> None:
        """The protocol has received the last message, or has closed."""

    def abort(self) -> None:
        """The connection ends now, for any reason."""


class Life(MachineCore, Generic[CompletionT]):
    """
    The lifecycle of one transport.

    @ivar isPaused: the protocol takes no messages; True until there is a protocol.
    @ivar isReading: a long message is being read, and later messages wait.
    """

    __slots__ = ("_hasClosed", "_inbox", "_inputs", "_stateName", "isPaused", "isReading")

    def __init__(self) -> None:
        self.isPaused = True
        self.isReading = False
        self._hasClosed = False
        self._inbox: list[tuple[LifeEventKind, CompletionT]] = []  # an empty deque takes 0.7 KiB
        self._inputs: LifeInputs = TABLE.begin(self)

    @property
    def state(self) -> str:
        """The state's name, as in the table."""
        return self._stateName

    @property
    def isOpen(self) -> bool:
        """True if the program may make requests."""
        return self._stateName == _OPEN

    @property
    def isLosing(self) -> bool:
        """True if the program has closed the connection, and has not been answered."""
        return self._stateName == _LOSING

    @property
    def isClosed(self) -> bool:
        """True if the connection has ended."""
        return self._stateName == _CLOSED

    @property
    def mayPost(self) -> bool:
        """True if the peer's queue pair exists, so that requests and receives can be posted."""
        return self._stateName in (_OPEN, _LOSING)

    @property
    def isDrained(self) -> bool:
        """True if the peer has closed, and the protocol has received all messages or has closed."""
        return self._stateName == _DRAINING and (self._hasClosed if self.isPaused else not self._inbox)

    @property
    def isLeft(self) -> bool:
        """True if the peer has closed, while the program has not."""
        return self._stateName == _DRAINING and not self._hasClosed

    @property
    def hasArrived(self) -> bool:
        """True if the peer has sent something that waits."""
        return any(kind not in (LifeEventKind.REQUEST, LifeEventKind.FAILURE) for kind, _ in self._inbox)

    def arrived(self, kind: LifeEventKind, completion: CompletionT) -> None:
        """Queue a completion for L{next}."""
        if self._stateName != _CLOSED:
            self._inbox.append((kind, completion))

    def wasRead(self, completion: CompletionT) -> None:
        """Note that a long message was read, which is delivered before all queued ones."""
        self.isReading = False
        if self._stateName != _CLOSED:
            self._inbox.insert(0, (LifeEventKind.LONG, completion))

    def next(self) -> tuple[LifeEventKind, CompletionT] | None:
        """
        Take the next completion to handle; None if there is none.

        While the protocol is paused, this is the oldest one that is not reported to it.
        """
        if not (self.isPaused or self.isReading):
            return self._inbox.pop(0) if self._inbox else None
        # Requests and credits do not wait for the application: else two paused ends would block each other. A
        # failure waits for the messages before it, which have arrived.
        for index, each in enumerate(self._inbox):
            kind = each[0]
            if kind in (LifeEventKind.REQUEST, LifeEventKind.CREDIT) or (
                kind is LifeEventKind.FAILURE and not index
            ):
                del self._inbox[index]
                return each
        return None

    def close(self) -> None:
        """Note that the program closes the connection in order, after everything that it has sent."""
        self._inputs.close()

    def peerClosed(self) -> None:
        """Note that the peer has closed, and that everything that it sent before has arrived."""
        self._inputs.peerClosed()

    def fail(self) -> bool:
        """Note that the queue pair, or a request, has failed; True if this ends the connection."""
        return self._ends(self._inputs.fail)

    def drained(self) -> bool:
        """Note that the protocol has received the last message; True if this ends the connection."""
        return self._ends(self._inputs.drained)

    def abort(self) -> bool:
        """End at once; False if the connection has ended before."""
        return self._ends(self._inputs.abort)

    def _ends(self, what: Callable[[], None]) -> bool:
        isOver = self.isClosed
        what()
        return self.isClosed and not isOver

    # What transitions do

    def _noteClose(self) -> None:
        self._hasClosed = True

    def _forget(self) -> None:
        self._inbox.clear()


_OPEN = "OPEN"
_LOSING = "LOSING"
_DRAINING = "DRAINING"
_CLOSED = "CLOSED"

_In = LifeInputs
_Do = Life


def _rows() -> Iterator[Row[LifeInputs, Life[Any]]]:
    yield _OPEN, _In.close, _LOSING, (_Do._noteClose,)
    yield _OPEN, _In.peerClosed, _DRAINING, ()
    yield _OPEN, _In.fail, _CLOSED, (_Do._forget,)
    yield _OPEN, _In.abort, _CLOSED, (_Do._forget,)
    yield _LOSING, _In.peerClosed, _DRAINING, ()
    yield _LOSING, _In.fail, _CLOSED, (_Do._forget,)
    yield _LOSING, _In.abort, _CLOSED, (_Do._forget,)
    yield _DRAINING, _In.close, _DRAINING, (_Do._noteClose,)
    yield _DRAINING, _In.drained, _CLOSED, (_Do._forget,)
    yield _DRAINING, _In.abort, _CLOSED, (_Do._forget,)


TABLE: StateTable[LifeInputs, Life[Any]] = StateTable(LifeInputs, Life, _rows())
