"""
The end of a connection: done writing, closed, aborted, lost, by either end, in any order.

Follows RFC 7609, 4.8; names and numbers of states are Linux's. Some of these hide a difference that the next
step depends on (has the application closed, or only stopped writing?); it stands in brackets here::

    closing = Closing()
    closing.established()
    ...
    for event in closing.events():      # after each call: Send, ReadEnded, Ended, Released

Two rules are TCP's. An application that closes hears so when the peer has its bytes, not before
(L{Closing.delivered}). And what the peer does, or its death, or the link's, takes effect behind the bytes
that have arrived: those are read first (L{Closing.drained}).
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum, IntEnum
from functools import lru_cache
from typing import Final, Protocol, Union

from txrdma.kit.machines import Row, Table
from txrdma.kit.values import frozen
from txrdma.smc.wire.cdc import StateFlags

LINGER_TIMEOUT = 60.0
"""Seconds to wait for the peer's part of a close, once the application is gone, before C{expired()}."""


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
    """The way a connection ended, as its application is told."""

    DONE = "closed by the application"
    ABORTED = "aborted by the application"
    RESET = "aborted by the peer"
    BROKEN = "the peer broke the protocol"
    LOST = "the link is gone"


# As numbers: flags that know their names are slow to combine.
_DONE_FLAG: Final = int(StateFlags.DONE_WRITING)
_CLOSED_FLAG: Final = int(StateFlags.CLOSED)
_ABORT_FLAG: Final = int(StateFlags.ABNORMAL_CLOSE)
_KNOWN: Final = _DONE_FLAG | _CLOSED_FLAG | _ABORT_FLAG


@frozen
class Send:
    """Send a CDC message with these flags, after all that was written; every later one has them, too."""

    flags: int


@frozen
class ReadEnded:
    """The application has read all that there will be: end of file."""


@frozen
class Ended:
    """The connection is over for the application, which may neither read nor write."""

    how: Ending


@frozen
class Released:
    """
    The connection is over: its token and its buffer are free.

    @ivar quiet: the peer can't be writing into the buffer any more. If False the buffer may be used again
        only when the peer has forgotten its key, or the link is gone.
    """

    quiet: bool


Event = Union[Send, ReadEnded, Ended, Released]


class Inputs(Protocol):
    """The inputs of a close state machine: all that can happen to a connection's end (RFC 7609, 4.8)."""

    def established(self) -> None:
        """The CLC handshake is done: the connection carries data."""

    def doneWriting(self) -> None:
        """The application will write no more, and all that it wrote is sent."""

    def close(self) -> None:
        """The application has closed, and all that it wrote is sent."""

    def delivered(self) -> None:
        """The peer has all that was sent, the flags of the end included."""

    def readUp(self) -> None:
        """All that came before the end from outside is read."""

    def abort(self) -> None:
        """The application doesn't want to wait."""

    def fail(self) -> None:
        """The peer breaks the rules."""

    def peerDoneWriting(self) -> None:
        """The peer will write no more."""

    def peerClosed(self) -> None:
        """The peer will neither write nor read."""

    def peerAborted(self) -> None:
        """The peer has aborted the connection, by a flag of its CDC message."""

    def groupDied(self) -> None:
        """There is no link any more."""

    def expired(self) -> None:
        """The peer does not do its part."""


class Closing:
    """
    The end of one connection, and the data that transitions of its state machine act on.

    What applications and peers can do late, twice or in the wrong order has an answer in every state.

    @ivar flags: the state flags of every CDC message from now on.
    @ivar over: the application has been told the end: nothing that arrives is for anybody.
    @ivar _behind: what is told when all that has arrived is read: an end of file (None), then a last word.
    @ivar _peer: the state flags that the peer has sent so far (RFC 7609, A.4).
    """

    __slots__ = ("_behind", "_inputs", "_peer", "_pending", "_place", "flags", "over")
    _place: str

    def __init__(self) -> None:
        self.flags = 0
        self._pending: list[Event] = []
        self._behind: tuple[Ending | None, ...] = ()
        self.over = False
        self._peer = 0
        self._inputs = _TABLE.begin(self)

    @property
    def state(self) -> State:
        """The state of the connection's end, by Linux's name."""
        return State[self._place.partition(" ")[0]]

    @property
    def readEnding(self) -> bool:
        """Whether something waits behind what has arrived: call C{drained} when that is read."""
        return bool(self._behind)

    def events(self) -> list[Event]:
        """Take the events since the last call, in the order in which to act on them."""
        if not self._pending:
            return []
        events, self._pending = self._pending, []
        return events

    def established(self) -> None:
        """Note that the CLC handshake is done."""
        self._inputs.established()

    def doneWriting(self) -> None:
        """The application will write no more, and all that it wrote is sent."""
        self._inputs.doneWriting()

    def close(self) -> None:
        """
        The application has closed, and all that it wrote is sent: L{Ended} follows C{delivered}.

        What it has not read is no matter: Twisted's TCP transports send a FIN ahead of the kernel's reset.
        """
        self._inputs.close()

    def delivered(self) -> None:
        """The peer has all that was sent, the flags included: nothing that happens later can take it away."""
        self._inputs.delivered()

    def stopped(self) -> None:
        """The application can't go on: it is told of a loss, its peer of an orderly end, as with TCP."""
        self._lost()
        self._inputs.close()

    def abort(self) -> None:
        """The application doesn't want to wait."""
        self._inputs.abort()

    def fail(self) -> None:
        """The peer broke the rules."""
        self._inputs.fail()

    def groupDied(self, unread: int) -> None:
        """
        There is no link any more.

        @param unread: bytes that have arrived and are not read; they are, before the end is told.
        """
        self._inputs.groupDied()
        if not unread:
            self.drained()

    def expired(self) -> None:
        """C{LINGER_TIMEOUT} went by since L{Ended}, without L{Released}."""
        self._inputs.expired()

    def received(self, flags: int, unread: int) -> None:
        """
        A CDC message came; its cursors are taken in already.

        @param flags: its state flags. They stay set, so only new ones are news.
        @param unread: bytes that have arrived and are not read.
        """
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
        """All that has arrived is read: the end of file is told, or the last word; call again for both."""
        behind = self._behind
        if behind:
            if behind[0] is None:
                self._behind = behind[1:]
                self._pending.append(ReadEnded())
            else:
                self._inputs.readUp()

    # What transitions do

    def _send(self, flag: int) -> None:
        self.flags |= flag
        self._pending.append(Send(self.flags))

    def _sendDone(self) -> None:
        self._send(_DONE_FLAG)

    def _sendClosed(self) -> None:
        self._send(_CLOSED_FLAG)

    def _sendAbort(self) -> None:
        self._send(_ABORT_FLAG)

    def _endOfData(self) -> None:
        self._behind += (None,)

    def _resetLast(self) -> None:
        self._behind += (Ending.RESET,)

    def _lostLast(self) -> None:
        self._behind += (Ending.LOST,)

    def _lastWord(self) -> None:
        """Tell the reason that came from outside (peer, link), unless that is told already."""
        for how in self._behind:
            if how is not None:
                self._tell(how)
                break

    def _tell(self, how: Ending) -> None:
        self._behind = ()
        if not self.over:
            self.over = True
            self._pending.append(Ended(how))

    def _done(self) -> None:
        self._tell(Ending.DONE)

    def _aborted(self) -> None:
        self._tell(Ending.ABORTED)

    def _broken(self) -> None:
        self._tell(Ending.BROKEN)

    def _lost(self) -> None:
        self._tell(Ending.LOST)

    def _release(self) -> None:
        self._pending.append(Released(True))
        self._inputs = _spent()

    def _abandon(self) -> None:
        self._pending.append(Released(False))
        self._inputs = _spent()


_INIT = "INIT"
_ACTIVE = "ACTIVE"
_PEER1 = "PEERCLOSEWAIT1"  # we are done writing
_PEER1_CLOSED = "PEERCLOSEWAIT1 (application closed)"
_PEER2 = "PEERCLOSEWAIT2"  # we are done writing, then the peer was
_PEER2_CLOSED = "PEERCLOSEWAIT2 (application closed)"
_APP1 = "APPCLOSEWAIT1"  # the peer is done writing
_APP1_CLOSED = "APPCLOSEWAIT1 (peer closed)"
_APP2 = "APPCLOSEWAIT2"  # the peer is done writing, then we were
_APP2_CLOSED = "APPCLOSEWAIT2 (peer closed)"
_APPFIN = "APPFINCLOSEWAIT"  # we are done writing, then the peer closed
_PEERFIN = "PEERFINCLOSEWAIT"  # the peer is done writing, then the application closed
_PEERABORT = "PEERABORTWAIT"
_PROCESSABORT = "PROCESSABORT"  # aborted by the peer, or without a link: what came before is read
_PROCESSABORT_DONE = "PROCESSABORT (peer done writing)"
_CLOSED = "CLOSED"

_In = Inputs
_Do = Closing
_Row = Row[Inputs, Closing]

_NORMAL: tuple[_Row, ...] = (
    (_INIT, _In.established, _ACTIVE, ()),
    # A first message can overtake the end of the handshake.
    (_INIT, _In.peerDoneWriting, _APP1, (_Do._endOfData,)),
    (_INIT, _In.peerClosed, _APP1_CLOSED, (_Do._endOfData,)),
    (_ACTIVE, _In.doneWriting, _PEER1, (_Do._sendDone,)),
    (_ACTIVE, _In.close, _PEER1_CLOSED, (_Do._sendClosed,)),
    (_ACTIVE, _In.peerDoneWriting, _APP1, (_Do._endOfData,)),
    (_ACTIVE, _In.peerClosed, _APP1_CLOSED, (_Do._endOfData,)),
    # Active close.
    (_PEER1, _In.close, _PEER1_CLOSED, (_Do._sendClosed,)),
    (_PEER1, _In.peerDoneWriting, _PEER2, (_Do._endOfData,)),
    (_PEER1, _In.peerClosed, _APPFIN, (_Do._endOfData,)),
    (_PEER1_CLOSED, _In.peerDoneWriting, _PEER2_CLOSED, ()),
    (_PEER1_CLOSED, _In.peerClosed, _CLOSED, (_Do._done, _Do._release)),
    (_PEER2, _In.close, _PEER2_CLOSED, (_Do._sendClosed,)),
    (_PEER2, _In.peerClosed, _APPFIN, ()),
    (_PEER2_CLOSED, _In.peerClosed, _CLOSED, (_Do._done, _Do._release)),
    (_APPFIN, _In.close, _CLOSED, (_Do._sendClosed, _Do._done, _Do._release)),
    # Passive close.
    (_APP1, _In.doneWriting, _APP2, (_Do._sendDone,)),
    (_APP1, _In.close, _PEERFIN, (_Do._sendClosed,)),
    (_APP1, _In.peerClosed, _APP1_CLOSED, ()),
    (_APP1_CLOSED, _In.doneWriting, _APP2_CLOSED, (_Do._sendDone,)),
    (_APP1_CLOSED, _In.close, _CLOSED, (_Do._sendClosed, _Do._done, _Do._release)),
    (_APP2, _In.close, _PEERFIN, (_Do._sendClosed,)),
    (_APP2, _In.peerClosed, _APP2_CLOSED, ()),
    (_APP2_CLOSED, _In.close, _CLOSED, (_Do._sendClosed, _Do._done, _Do._release)),
    (_PEERFIN, _In.peerClosed, _CLOSED, (_Do._done, _Do._release)),
    # Who closes hears of it when the peer has all.
    *((here, _In.delivered, here, (_Do._done,)) for here in (_PEER1_CLOSED, _PEER2_CLOSED, _PEERFIN)),
)


def _abnormal() -> Iterator[_Row]:
    for here in (_INIT, _ACTIVE, _PEER1, _PEER2, _APP1, _APP2):
        yield here, _In.abort, _PEERABORT, (_Do._sendAbort, _Do._aborted)
        yield here, _In.fail, _PEERABORT, (_Do._sendAbort, _Do._broken)
    # The peer has closed: it writes no more, and does not answer an abort.
    for here in (_APP1_CLOSED, _APP2_CLOSED, _APPFIN):
        yield here, _In.abort, _CLOSED, (_Do._sendAbort, _Do._aborted, _Do._release)
        yield here, _In.fail, _CLOSED, (_Do._sendAbort, _Do._broken, _Do._release)
    # The application has closed, and the peer is told by "closed"; perhaps it has not got so far.
    for here in (_PEER1_CLOSED, _PEER2_CLOSED, _PEERFIN):
        yield here, _In.abort, _PEERABORT, (_Do._sendAbort, _Do._aborted)
        yield here, _In.fail, _CLOSED, (_Do._broken, _Do._abandon)
        yield here, _In.peerAborted, _CLOSED, (_Do._done, _Do._release)
        yield here, _In.expired, _CLOSED, (_Do._lost, _Do._abandon)
    # What comes from outside waits until all is read that came before. An answer to an abort is more than
    # Linux gives in some of these states; it spares the peer its wait.
    for here in (_INIT, _ACTIVE, _PEER1):
        yield here, _In.peerAborted, _PROCESSABORT, (_Do._sendAbort, _Do._resetLast)
    for here in (_APP1, _APP1_CLOSED, _APP2, _APP2_CLOSED, _PEER2, _APPFIN):
        yield here, _In.peerAborted, _PROCESSABORT_DONE, (_Do._sendAbort, _Do._resetLast)
    for here in (_ACTIVE, _PEER1):
        yield here, _In.groupDied, _PROCESSABORT, (_Do._lostLast,)
    for here in (_APP1, _APP2, _PEER2):
        yield here, _In.groupDied, _PROCESSABORT_DONE, (_Do._lostLast,)
    for here in (_PROCESSABORT, _PROCESSABORT_DONE):
        yield here, _In.readUp, _CLOSED, (_Do._lastWord, _Do._release)
        yield here, _In.abort, _CLOSED, (_Do._aborted, _Do._release)
        yield here, _In.fail, _CLOSED, (_Do._broken, _Do._release)
    yield _PROCESSABORT, _In.close, _CLOSED, (_Do._lastWord, _Do._release)
    yield _PROCESSABORT_DONE, _In.close, _CLOSED, (_Do._done, _Do._release)
    yield _PEERABORT, _In.peerAborted, _CLOSED, (_Do._release,)
    yield _PEERABORT, _In.peerClosed, _CLOSED, (_Do._release,)
    yield _PEERABORT, _In.expired, _CLOSED, (_Do._lost, _Do._abandon)
    for here in (_INIT, _PEER1_CLOSED, _PEER2_CLOSED, _PEERFIN, _PEERABORT):
        yield here, _In.groupDied, _CLOSED, (_Do._lost, _Do._release)


_ROWS = (*_NORMAL, *_abnormal())

_OURS: frozenset[tuple[str, str]] = frozenset(
    (
        (_INIT, "doneWriting"),
        (_INIT, "close"),
        *((place, "established") for place in (_ACTIVE, _PEER1, _PEER2)),
    )
)
"""Transitions that only a mistake of ours can bring about: C{NoTransition}."""


_TABLE = Table(Inputs, Closing, _ROWS, _OURS)


@lru_cache(1)
def _spent() -> Inputs:
    """The inputs of a connection that is over: they do nothing, and keep no connection's data in a circle."""
    return _TABLE.begin(Closing(), _CLOSED)


def diagram() -> str:
    """The state machine as a graph in the DOT language, for the documentation."""
    return _TABLE.diagram("closing", frozenset({"groupDied"}))
