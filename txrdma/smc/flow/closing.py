"""
State machine for closing a connection, by either end, in order or not (RFC 7609, 4.8).

Theory of operation. Each end sends three state flags in its messages, which stay set: DONE_WRITING (half
close), CLOSED, and ABNORMAL_CLOSE (abort). A connection is released when both ends have closed, one has
aborted and the other answered, or there is no link any more. States have the names and numbers of Linux. Some
of these do not show whether an end has closed or only stopped writing, which determines the next state: the
state's name then has a suffix in parentheses, such as C{PEERCLOSEWAIT1 (application closed)}.

There are four groups of states. INIT and ACTIVE: open. PEERCLOSEWAIT and PEERFINCLOSEWAIT: the local end has
sent its flag, and waits for the peer's. APPCLOSEWAIT and APPFINCLOSEWAIT: the peer has sent its flag, and the
application may still write or close. PEERABORTWAIT: aborted locally. PROCESSABORT: aborted by the peer, or
without a link. An input without a row in the current state changes nothing. Inputs in C{_OURS} raise
C{NoTransition}, since only a bug of the caller can cause them.

The machine does no I/O. The caller feeds it with inputs and acts on its events::

    closing = Closing()
    closing.established()
    ...
    for event in closing.events():      # after each call: Send, ReadEnded, Ended, Released

The application's and the peer's half end separately. The actions in the table show when an
C{IHalfCloseableProtocol} is called; other protocols are closed instead of C{readConnectionLost}:

    - C{writeConnectionLost}: after C{doneWriting}, when DONE_WRITING is posted.
    - C{readConnectionLost}: action of that name, when all received bytes are read (L{Closing.drained}).
    - C{connectionLost} with C{ConnectionDone}: C{connectionDone}. The application has closed, and the peer
      has received its bytes (L{Closing.delivered}) or closed, too.
    - ... with C{ConnectionAborted}: C{connectionAborted}, immediately.
    - ... with C{ConnectionLost}: C{connectionBroken} and C{connectionLost}, immediately; C{resetAfterRead}
      and C{lostAfterRead}, when all bytes received before are read (C{connectionEndedAfterRead}).

L{txrdma.smc.stream.stream.Stream} makes these calls, C{connectionLost} and C{readConnectionLost} in the next
reactor iteration, as TCP does.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum, IntEnum
from functools import lru_cache
from typing import Final, Protocol, Union

from txrdma.kit.machines import MachineCore, Row, Table
from txrdma.kit.values import frozen
from txrdma.smc.wire.cdc import StateFlags

LINGER_TIMEOUT = 60.0
"""Seconds to wait for the peer to close after the application has ended, before C{expired()}."""


class State(IntEnum):
    """The states of a connection, with Linux's numbers."""

    ACTIVE = 1
    INIT = 2
    CLOSED = 7
    PEERCLOSEWAIT1 = 20
    PEERCLOSEWAIT2 = 21
    APPCLOSEWAIT1 = 22
    APPCLOSEWAIT2 = 23
    APPFINCLOSEWAIT = 24
    PEERFINCLOSEWAIT = 25
    PEERABORTWAIT = 26
    PROCESSABORT = 27


class Ending(Enum):
    """Reason for the end of a connection, as reported to the application."""

    DONE = "closed by the application"
    ABORTED = "aborted by the application"
    RESET = "aborted by the peer"
    BROKEN = "the peer broke the protocol"
    LOST = "the link is gone"


# Plain integers, because enum flags are slow to combine.
_DONE_FLAG: Final = int(StateFlags.DONE_WRITING)
_CLOSED_FLAG: Final = int(StateFlags.CLOSED)
_ABORT_FLAG: Final = int(StateFlags.ABNORMAL_CLOSE)
_KNOWN: Final = _DONE_FLAG | _CLOSED_FLAG | _ABORT_FLAG


@frozen
class Send:
    """Send a CDC message with these flags after all written bytes; later messages carry them, too."""

    flags: int


@frozen
class ReadEnded:
    """The application has read everything: end of file."""


@frozen
class Ended:
    """The connection has ended for the application, which may neither read nor write."""

    how: Ending


@frozen
class Released:
    """
    The connection has ended on both sides: its token and its buffer are free.

    @ivar quiet: the peer does not write into the buffer any more. If False, the buffer may be reused only
        after the peer has deleted its key, or the link has ended.
    """

    quiet: bool


Event = Union[Send, ReadEnded, Ended, Released]


class Inputs(Protocol):
    """Inputs of the close state machine (RFC 7609, 4.8)."""

    def established(self) -> None:
        """The CLC handshake has succeeded."""

    def doneWriting(self) -> None:
        """The application has closed its write side, and all bytes are sent."""

    def close(self) -> None:
        """The application has closed, and all bytes are sent."""

    def delivered(self) -> None:
        """The peer has received everything, including the final flags."""

    def readUp(self) -> None:
        """The application has read all bytes before the end."""

    def abort(self) -> None:
        """The application aborts."""

    def fail(self) -> None:
        """The peer violated the protocol."""

    def peerDoneWriting(self) -> None:
        """The peer has closed its write side."""

    def peerClosed(self) -> None:
        """The peer has closed."""

    def peerAborted(self) -> None:
        """The peer has aborted the connection, by a flag of its CDC message."""

    def groupDied(self) -> None:
        """The link group has ended."""

    def expired(self) -> None:
        """The peer did not close in time."""


class Closing(MachineCore):
    """
    The close state machine of one connection, and the data that its transitions act on.

    @ivar flags: state flags of every CDC message from now on.
    @ivar over: L{Ended} has been emitted; received bytes are dropped.
    @ivar _behind: endings to report after the received bytes have been read: end of file (None), then the
        reason.
    @ivar _peer: state flags received from the peer so far (RFC 7609, A.4).
    """

    __slots__ = ("_behind", "_inputs", "_peer", "_pending", "_place", "flags", "over")

    def __init__(self) -> None:
        self.flags = 0
        self._pending: list[Event] = []
        self._behind: tuple[Ending | None, ...] = ()
        self.over = False
        self._peer = 0
        self._inputs = _TABLE.begin(self)

    @property
    def state(self) -> State:
        """The current state, by Linux's name."""
        return State[self._place.partition(" ")[0]]

    @property
    def readEnding(self) -> bool:
        """Whether an ending waits until all received bytes are read: call C{drained} then."""
        return bool(self._behind)

    def events(self) -> list[Event]:
        """Take the events since the last call, in the order in which to act on them."""
        if not self._pending:
            return []
        events, self._pending = self._pending, []
        return events

    def established(self) -> None:
        self._inputs.established()

    def doneWriting(self) -> None:
        self._inputs.doneWriting()

    def close(self) -> None:
        """Close after all bytes are sent, whether or not all are read; L{Ended} follows C{delivered}."""
        self._inputs.close()

    def delivered(self) -> None:
        self._inputs.delivered()

    def stopped(self) -> None:
        """End in order, because the application raised or the process stops."""
        self._connectionLost()
        self._inputs.close()

    def abort(self) -> None:
        self._inputs.abort()

    def fail(self) -> None:
        self._inputs.fail()

    def groupDied(self, unread: int) -> None:
        """End without a link; C{unread} bytes are still read before."""
        self._inputs.groupDied()
        if not unread:
            self.drained()

    def expired(self) -> None:
        """End after C{LINGER_TIMEOUT} without L{Released}."""
        self._inputs.expired()

    def received(self, flags: int, unread: int) -> None:
        """Process the peer's state flags, after its cursors; C{unread} bytes are not read yet."""
        new = flags & ~self._peer & _KNOWN
        if new:
            self._peer |= new
            if new & _ABORT_FLAG:
                self._inputs.peerAborted()
            elif new & _CLOSED_FLAG:
                self._inputs.peerClosed()
            else:
                self._inputs.peerDoneWriting()
            if not unread:
                self.drained()

    def drained(self) -> None:
        """Report end of file or the reason of the end, because all received bytes are read."""
        behind = self._behind
        if behind:
            if behind[0] is None:
                self._behind = behind[1:]
                self._pending.append(ReadEnded())
            else:
                self._inputs.readUp()

    # Actions of transitions

    def _send(self, flag: int) -> None:
        self.flags |= flag
        self._pending.append(Send(self.flags))

    def _sendDone(self) -> None:
        self._send(_DONE_FLAG)

    def _sendClosed(self) -> None:
        self._send(_CLOSED_FLAG)

    def _sendAbort(self) -> None:
        self._send(_ABORT_FLAG)

    def _readConnectionLost(self) -> None:
        self._behind += (None,)

    def _resetAfterRead(self) -> None:
        self._behind += (Ending.RESET,)

    def _lostAfterRead(self) -> None:
        self._behind += (Ending.LOST,)

    def _connectionEndedAfterRead(self) -> None:
        """Report the reason caused by the peer or the link, unless one has been reported."""
        for how in self._behind:
            if how is not None:
                self._end(how)
                break

    def _end(self, how: Ending) -> None:
        self._behind = ()
        if not self.over:
            self.over = True
            self._pending.append(Ended(how))

    def _connectionDone(self) -> None:
        self._end(Ending.DONE)

    def _connectionAborted(self) -> None:
        self._end(Ending.ABORTED)

    def _connectionBroken(self) -> None:
        self._end(Ending.BROKEN)

    def _connectionLost(self) -> None:
        self._end(Ending.LOST)

    def _release(self) -> None:
        self._pending.append(Released(True))
        self._inputs = _spent()

    def _abandon(self) -> None:
        self._pending.append(Released(False))
        self._inputs = _spent()


_INIT = "INIT"
_ACTIVE = "ACTIVE"
_PEER1 = "PEERCLOSEWAIT1"  # local writing is done
_PEER1_CLOSED = "PEERCLOSEWAIT1 (application closed)"
_PEER2 = "PEERCLOSEWAIT2"  # local writing is done, then the peer's
_PEER2_CLOSED = "PEERCLOSEWAIT2 (application closed)"
_APP1 = "APPCLOSEWAIT1"  # the peer's writing is done
_APP1_CLOSED = "APPCLOSEWAIT1 (peer closed)"
_APP2 = "APPCLOSEWAIT2"  # the peer's writing is done, then the local
_APP2_CLOSED = "APPCLOSEWAIT2 (peer closed)"
_APPFIN = "APPFINCLOSEWAIT"  # local writing is done, then the peer closed
_PEERFIN = "PEERFINCLOSEWAIT"  # the peer's writing is done, then the application closed
_PEERABORT = "PEERABORTWAIT"
_PROCESSABORT = "PROCESSABORT"  # aborted by the peer, or without a link: bytes received before are still read
_PROCESSABORT_DONE = "PROCESSABORT (peer done writing)"
_CLOSED = "CLOSED"

_In = Inputs
_Do = Closing
_Row = Row[Inputs, Closing]

_NORMAL: tuple[_Row, ...] = (
    (_INIT, _In.established, _ACTIVE, ()),
    # A first message can overtake the end of the handshake.
    (_INIT, _In.peerDoneWriting, _APP1, (_Do._readConnectionLost,)),
    (_INIT, _In.peerClosed, _APP1_CLOSED, (_Do._readConnectionLost,)),
    (_ACTIVE, _In.doneWriting, _PEER1, (_Do._sendDone,)),
    (_ACTIVE, _In.close, _PEER1_CLOSED, (_Do._sendClosed,)),
    (_ACTIVE, _In.peerDoneWriting, _APP1, (_Do._readConnectionLost,)),
    (_ACTIVE, _In.peerClosed, _APP1_CLOSED, (_Do._readConnectionLost,)),
    # Active close.
    (_PEER1, _In.close, _PEER1_CLOSED, (_Do._sendClosed,)),
    (_PEER1, _In.peerDoneWriting, _PEER2, (_Do._readConnectionLost,)),
    (_PEER1, _In.peerClosed, _APPFIN, (_Do._readConnectionLost,)),
    (_PEER1_CLOSED, _In.peerDoneWriting, _PEER2_CLOSED, ()),
    (_PEER1_CLOSED, _In.peerClosed, _CLOSED, (_Do._connectionDone, _Do._release)),
    (_PEER2, _In.close, _PEER2_CLOSED, (_Do._sendClosed,)),
    (_PEER2, _In.peerClosed, _APPFIN, ()),
    (_PEER2_CLOSED, _In.peerClosed, _CLOSED, (_Do._connectionDone, _Do._release)),
    (_APPFIN, _In.close, _CLOSED, (_Do._sendClosed, _Do._connectionDone, _Do._release)),
    # Passive close.
    (_APP1, _In.doneWriting, _APP2, (_Do._sendDone,)),
    (_APP1, _In.close, _PEERFIN, (_Do._sendClosed,)),
    (_APP1, _In.peerClosed, _APP1_CLOSED, ()),
    (_APP1_CLOSED, _In.doneWriting, _APP2_CLOSED, (_Do._sendDone,)),
    (_APP1_CLOSED, _In.close, _CLOSED, (_Do._sendClosed, _Do._connectionDone, _Do._release)),
    (_APP2, _In.close, _PEERFIN, (_Do._sendClosed,)),
    (_APP2, _In.peerClosed, _APP2_CLOSED, ()),
    (_APP2_CLOSED, _In.close, _CLOSED, (_Do._sendClosed, _Do._connectionDone, _Do._release)),
    (_PEERFIN, _In.peerClosed, _CLOSED, (_Do._connectionDone, _Do._release)),
    # An application that has closed gets connectionLost when the peer has received everything.
    *(
        (here, _In.delivered, here, (_Do._connectionDone,))
        for here in (_PEER1_CLOSED, _PEER2_CLOSED, _PEERFIN)
    ),
)


def _abnormal() -> Iterator[_Row]:
    for here in (_INIT, _ACTIVE, _PEER1, _PEER2, _APP1, _APP2):
        yield here, _In.abort, _PEERABORT, (_Do._sendAbort, _Do._connectionAborted)
        yield here, _In.fail, _PEERABORT, (_Do._sendAbort, _Do._connectionBroken)
    # The peer has closed: it writes no more, and does not answer an abort.
    for here in (_APP1_CLOSED, _APP2_CLOSED, _APPFIN):
        yield here, _In.abort, _CLOSED, (_Do._sendAbort, _Do._connectionAborted, _Do._release)
        yield here, _In.fail, _CLOSED, (_Do._sendAbort, _Do._connectionBroken, _Do._release)
    # The application has closed and CLOSED has been sent, but may not have arrived yet.
    for here in (_PEER1_CLOSED, _PEER2_CLOSED, _PEERFIN):
        yield here, _In.abort, _PEERABORT, (_Do._sendAbort, _Do._connectionAborted)
        yield here, _In.fail, _CLOSED, (_Do._connectionBroken, _Do._abandon)
        yield here, _In.peerAborted, _CLOSED, (_Do._connectionDone, _Do._release)
        yield here, _In.expired, _CLOSED, (_Do._connectionLost, _Do._abandon)
    # Endings caused by the peer or the link wait until all bytes received before are read. Linux does not
    # answer an abort in all of these states; the answer saves the peer its timeout.
    for here in (_INIT, _ACTIVE, _PEER1):
        yield here, _In.peerAborted, _PROCESSABORT, (_Do._sendAbort, _Do._resetAfterRead)
    for here in (_APP1, _APP1_CLOSED, _APP2, _APP2_CLOSED, _PEER2, _APPFIN):
        yield here, _In.peerAborted, _PROCESSABORT_DONE, (_Do._sendAbort, _Do._resetAfterRead)
    for here in (_ACTIVE, _PEER1):
        yield here, _In.groupDied, _PROCESSABORT, (_Do._lostAfterRead,)
    for here in (_APP1, _APP2, _PEER2):
        yield here, _In.groupDied, _PROCESSABORT_DONE, (_Do._lostAfterRead,)
    for here in (_PROCESSABORT, _PROCESSABORT_DONE):
        yield here, _In.readUp, _CLOSED, (_Do._connectionEndedAfterRead, _Do._release)
        yield here, _In.abort, _CLOSED, (_Do._connectionAborted, _Do._release)
        yield here, _In.fail, _CLOSED, (_Do._connectionBroken, _Do._release)
    yield _PROCESSABORT, _In.close, _CLOSED, (_Do._connectionEndedAfterRead, _Do._release)
    yield _PROCESSABORT_DONE, _In.close, _CLOSED, (_Do._connectionDone, _Do._release)
    yield _PEERABORT, _In.peerAborted, _CLOSED, (_Do._release,)
    yield _PEERABORT, _In.peerClosed, _CLOSED, (_Do._release,)
    yield _PEERABORT, _In.expired, _CLOSED, (_Do._connectionLost, _Do._abandon)
    for here in (_INIT, _PEER1_CLOSED, _PEER2_CLOSED, _PEERFIN, _PEERABORT):
        yield here, _In.groupDied, _CLOSED, (_Do._connectionLost, _Do._release)


_ROWS = (*_NORMAL, *_abnormal())

_OURS: frozenset[tuple[str, str]] = frozenset(
    (
        (_INIT, "doneWriting"),
        (_INIT, "close"),
        *((place, "established") for place in (_ACTIVE, _PEER1, _PEER2)),
    )
)
"""Inputs that only a bug of the caller can cause in these states: they raise C{NoTransition}."""


_TABLE = Table(Inputs, Closing, _ROWS, _OURS)


@lru_cache(1)
def _spent() -> Inputs:
    """Return inputs that do nothing. Ended connections share them, which breaks reference cycles."""
    return _TABLE.begin(Closing(), _CLOSED)


def diagram() -> str:
    """Return the state machine as a graph in the DOT language, for the documentation."""
    return _TABLE.diagram("closing", frozenset({"groupDied"}))
