"""
The lifecycle of a connection: a table of its states while both ends close, in order or not (RFC 7609, 4.8).

Theory of operation. The application and its peer close independently, as in TCP.
So a connection has two states:

    - of the application: INIT (until the CLC handshake has succeeded), OPEN, DONE (writes no more), CLOSED,
      ABORTED
    - of the peer: OPEN, DONE, CLOSED, LOST (it has aborted, or there is no link any more), LOST_AFTER_END
      (the same, after it was DONE or CLOSED)

Each end sends its state as flags of its messages, which stay set: DONE_WRITING (half close), CLOSED, and
ABNORMAL_CLOSE (abort). C{LIFECYCLE} contains all inputs that have an effect, by both states, with the new
states and the actions. A connection is released in (CLOSED, CLOSED): both ends have closed, one has aborted
and the other answered, or there is no link any more.

Inputs are calls of L{Lifecycle}. C{readUp} follows when all bytes received before the end have been read.
Actions are methods of L{Lifecycle} with an underscore. They show the notifications of the application:

    - C{readConnectionLost}: C{readConnectionLost} of an C{IHalfCloseableProtocol}, when all received bytes
      are read. Other protocols are closed instead. (C{writeConnectionLost} is called when the flag of
      C{sendDone} has been posted.)
    - C{connectionDone}: C{connectionLost} with C{ConnectionDone}. The application has closed, and the peer
      has received its bytes (C{delivered}) or closed, too.
    - C{connectionAborted}: C{connectionLost} with C{ConnectionAborted}, immediately.
    - C{connectionBroken}, C{connectionLost}: C{connectionLost} with C{ConnectionLost}, immediately.
    - C{resetAfterRead}, C{lostAfterRead}: the same, but when all received bytes are read: this is what
      C{connectionEndedAfterRead} reports.

C{release} and C{abandon} end the connection: the peer writes no more, or may still write, into its buffer.
After L{Lifecycle.peerLost} C{release} waits for the peer's end, like an abort of the application.

L{txrdma.smc.stream.stream.Stream} makes these calls, C{connectionLost} and C{readConnectionLost} in the next
reactor iteration, as TCP does. The machine does no I/O: the caller acts on its events::

    closing = Closing()
    closing.established()
    ...
    for event in closing.events():      # after each call: Send, ReadEnded, Ended, Released
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, IntEnum
from typing import Final, Literal, Union

from typing_extensions import Unpack

from txrdma.kit.values import frozen
from txrdma.smc.wire.cdc import StateFlags

LINGER_TIMEOUT = 60.0
"""Seconds to wait for the peer to close after the application has ended, before C{expired()}."""

LOST_TIMEOUT = 0.5
"""The same if the peer seems lost (L{Lifecycle.peerLost}): one that is alive usually ends at once."""


Application = Literal["INIT", "OPEN", "DONE", "CLOSED", "ABORTED"]
Peer = Literal["OPEN", "DONE", "CLOSED", "LOST", "LOST_AFTER_END"]
INIT: Final = "INIT"
OPEN: Final = "OPEN"
DONE: Final = "DONE"
CLOSED: Final = "CLOSED"
ABORTED: Final = "ABORTED"
LOST: Final = "LOST"
LOST_AFTER_END: Final = "LOST_AFTER_END"

Input = Literal[
    "established",
    "doneWriting",
    "close",
    "delivered",
    "readUp",
    "abort",
    "fail",
    "peerDoneWriting",
    "peerClosed",
    "peerAborted",
    "groupDied",
    "expired",
]

_Transitions = dict[Input, tuple[Application, Peer, Unpack[tuple[str, ...]]]]
"""Inputs in the same states, with the new states and the actions."""

_ABORT_INPUTS: Final[_Transitions] = {
    "abort": (ABORTED, OPEN, "sendAbort", "connectionAborted"),
    "fail": (ABORTED, OPEN, "sendAbort", "connectionBroken"),
}
# Linux does not always answer an abort; the answer saves the peer its timeout.
_LOST_INPUTS: Final[_Transitions] = {
    "peerAborted": (OPEN, LOST, "sendAbort", "resetAfterRead"),
    "groupDied": (OPEN, LOST, "lostAfterRead"),
}
_LOST_AFTER_END_INPUTS: Final[_Transitions] = {
    "peerAborted": (OPEN, LOST_AFTER_END, "sendAbort", "resetAfterRead"),
    "groupDied": (OPEN, LOST_AFTER_END, "lostAfterRead"),
}
_CLOSED_PEER_INPUTS: Final[_Transitions] = {
    "close": (CLOSED, CLOSED, "sendClosed", "connectionDone", "release"),
    "abort": (CLOSED, CLOSED, "sendAbort", "connectionAborted", "release"),
    "fail": (CLOSED, CLOSED, "sendAbort", "connectionBroken", "release"),
    "peerAborted": (OPEN, LOST_AFTER_END, "sendAbort", "resetAfterRead"),
}
_WAITING_INPUTS: Final[_Transitions] = {
    "peerClosed": (CLOSED, CLOSED, "connectionDone", "release"),
    "peerAborted": (CLOSED, CLOSED, "connectionDone", "release"),
    "abort": (ABORTED, OPEN, "sendAbort", "connectionAborted"),
    "fail": (CLOSED, CLOSED, "connectionBroken", "abandon"),
    "groupDied": (CLOSED, CLOSED, "connectionLost", "release"),
    "expired": (CLOSED, CLOSED, "connectionLost", "abandon"),
}

LIFECYCLE: Final[dict[tuple[Application, Peer], _Transitions]] = {
    (INIT, OPEN): {
        "established": (OPEN, OPEN),
        "peerDoneWriting": (OPEN, DONE, "readConnectionLost"),  # a message can overtake the handshake
        "peerClosed": (OPEN, CLOSED, "readConnectionLost"),
        **_ABORT_INPUTS,
        "peerAborted": (OPEN, LOST, "sendAbort", "resetAfterRead"),
        "groupDied": (CLOSED, CLOSED, "connectionLost", "release"),
    },
    (OPEN, OPEN): {
        "doneWriting": (DONE, OPEN, "sendDone"),
        "close": (CLOSED, OPEN, "sendClosed"),
        "peerDoneWriting": (OPEN, DONE, "readConnectionLost"),
        "peerClosed": (OPEN, CLOSED, "readConnectionLost"),
        **_ABORT_INPUTS,
        **_LOST_INPUTS,
    },
    (DONE, OPEN): {
        "close": (CLOSED, OPEN, "sendClosed"),
        "peerDoneWriting": (DONE, DONE, "readConnectionLost"),
        "peerClosed": (DONE, CLOSED, "readConnectionLost"),
        **_ABORT_INPUTS,
        **_LOST_INPUTS,
    },
    (OPEN, DONE): {
        "doneWriting": (DONE, DONE, "sendDone"),
        "close": (CLOSED, DONE, "sendClosed"),
        "peerClosed": (OPEN, CLOSED),
        **_ABORT_INPUTS,
        **_LOST_AFTER_END_INPUTS,
    },
    (DONE, DONE): {
        "close": (CLOSED, DONE, "sendClosed"),
        "peerClosed": (DONE, CLOSED),
        **_ABORT_INPUTS,
        **_LOST_AFTER_END_INPUTS,
    },
    # The peer has closed: it writes no more, does not answer an abort, and needs no link.
    (OPEN, CLOSED): {
        "doneWriting": (DONE, CLOSED, "sendDone"),
        **_CLOSED_PEER_INPUTS,
    },
    (DONE, CLOSED): {
        **_CLOSED_PEER_INPUTS,
    },
    # The application has closed: it gets connectionLost when the peer has received everything.
    (CLOSED, OPEN): {
        "delivered": (CLOSED, OPEN, "connectionDone"),
        "peerDoneWriting": (CLOSED, DONE),
        **_WAITING_INPUTS,
    },
    (CLOSED, DONE): {
        "delivered": (CLOSED, DONE, "connectionDone"),
        **_WAITING_INPUTS,
    },
    # Aborted by the application: the peer's answer releases the connection.
    (ABORTED, OPEN): {
        "peerClosed": (CLOSED, CLOSED, "release"),
        "peerAborted": (CLOSED, CLOSED, "release"),
        "groupDied": (CLOSED, CLOSED, "connectionLost", "release"),
        "expired": (CLOSED, CLOSED, "connectionLost", "abandon"),
    },
    # Aborted by the peer, or without a link: all bytes received before are read first.
    (OPEN, LOST): {
        "readUp": (CLOSED, CLOSED, "connectionEndedAfterRead", "release"),
        "close": (CLOSED, CLOSED, "connectionEndedAfterRead", "release"),
        "abort": (CLOSED, CLOSED, "connectionAborted", "release"),
        "fail": (CLOSED, CLOSED, "connectionBroken", "release"),
    },
    (OPEN, LOST_AFTER_END): {
        "readUp": (CLOSED, CLOSED, "connectionEndedAfterRead", "release"),
        "close": (CLOSED, CLOSED, "connectionDone", "release"),
        "abort": (CLOSED, CLOSED, "connectionAborted", "release"),
        "fail": (CLOSED, CLOSED, "connectionBroken", "release"),
    },
    (CLOSED, CLOSED): {},
}
"""By the states of application and peer: each input with an effect, the new states, and the actions."""

_BUGS: Final[frozenset[tuple[tuple[Application, Peer], Input]]] = frozenset(
    {
        ((INIT, OPEN), "doneWriting"),
        ((INIT, OPEN), "close"),
        ((OPEN, OPEN), "established"),
        ((DONE, OPEN), "established"),
    }
)
"""Inputs that only a bug of the caller can cause in these states: they raise C{NoTransition}."""


class State(IntEnum):
    """The states of a connection, with Linux's names and numbers."""

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


_LINUX: Final[dict[tuple[Application, Peer], tuple[State, ...]]] = {
    (INIT, OPEN): (State.INIT,),
    (OPEN, OPEN): (State.ACTIVE,),
    (DONE, OPEN): (State.PEERCLOSEWAIT1,),
    (OPEN, DONE): (State.APPCLOSEWAIT1,),
    (DONE, DONE): (State.PEERCLOSEWAIT2, State.APPCLOSEWAIT2),
    (OPEN, CLOSED): (State.APPCLOSEWAIT1,),
    (DONE, CLOSED): (State.APPFINCLOSEWAIT, State.APPCLOSEWAIT2),
    (CLOSED, OPEN): (State.PEERCLOSEWAIT1,),
    (CLOSED, DONE): (State.PEERCLOSEWAIT2, State.PEERFINCLOSEWAIT),
    (ABORTED, OPEN): (State.PEERABORTWAIT,),
    (OPEN, LOST): (State.PROCESSABORT,),
    (OPEN, LOST_AFTER_END): (State.PROCESSABORT,),
    (CLOSED, CLOSED): (State.CLOSED,),
}
"""Linux's names. If there are two, the first one applies if the application was DONE or CLOSED first."""


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

    @ivar quiet: the peer no longer writes into the buffer. If False, the buffer may be reused only
        after the peer has deleted its key, or the link has ended.
    """

    quiet: bool


Event = Union[Send, ReadEnded, Ended, Released]


class Lifecycle:
    """
    The states of one connection, and the data that actions change.

    @ivar application: the application's state; C{peer}: the peer's.
    @ivar flags: state flags of every CDC message from now on.
    @ivar isOver: L{Ended} has been emitted; received bytes are dropped.
    @ivar pending: the events that L{events} returns.
    @ivar _afterRead: endings to report after the received bytes have been read: end of file (None), then the
        reason.
    @ivar _peerFlags: state flags received from the peer so far (RFC 7609, A.4).
    @ivar _isFirst: whether the application was DONE or CLOSED before its peer.
    @ivar isPresumed: whether the peer seems lost, but may be alive and still write into the buffer.
    """

    __slots__ = (
        "_afterRead",
        "_isFirst",
        "_peerFlags",
        "application",
        "flags",
        "isOver",
        "isPresumed",
        "peer",
        "pending",
    )

    def __init__(self) -> None:
        self.application: Application = INIT
        self.peer: Peer = OPEN
        self.flags = 0
        self.pending: tuple[Event, ...] = ()
        self._afterRead: tuple[Ending | None, ...] = ()
        self.isOver = False
        self._peerFlags = 0
        self._isFirst = self.isPresumed = False

    @property
    def state(self) -> State:
        """The current state, by Linux's name."""
        names = _LINUX[self.application, self.peer]
        return names[0 if self._isFirst else -1]

    @property
    def readEnding(self) -> bool:
        """Whether an ending waits until all received bytes are read: call C{drained} then."""
        return bool(self._afterRead)

    def events(self) -> list[Event]:
        """Take the events since the last call, in the order in which to act on them."""
        events, self.pending = self.pending, ()
        return list(events)

    def _input(self, name: Input) -> None:
        """Change the states, and act, by C{LIFECYCLE}."""
        before = self.application, self.peer
        row = LIFECYCLE[before].get(name)
        if row is not None:
            self.application, self.peer, *actions = row
            if self.peer == OPEN and self.application in (DONE, CLOSED):
                self._isFirst = True
            for action in actions:
                _ACTIONS[action](self)
        elif (before, name) in _BUGS:
            from automat import NoTransition  # a bug in txrdma: rare, so imported late

            raise NoTransition(before, name)

    def restarted(self, flags: int, peerFlags: int) -> Lifecycle:
        """
        Return a lifecycle of the same connection, which is open: an exception has interrupted this one.

        @param flags: state flags sent so far; C{peerFlags}: those received.
        """
        made = Lifecycle()
        made.established()
        made.received(peerFlags, 1)
        made.flags |= flags
        made.isPresumed = self.isPresumed
        return made

    # Inputs

    def established(self) -> None:
        """The CLC handshake has succeeded."""
        self._input("established")

    def doneWriting(self) -> None:
        """The application has closed its write side, and all bytes are sent."""
        self._input("doneWriting")

    def close(self) -> None:
        """The application has closed, even with unread bytes, and all bytes are sent."""
        self._input("close")

    def delivered(self) -> None:
        """The peer has received everything, including the final flags."""
        self._input("delivered")

    def stopped(self) -> None:
        """End in order, because the application raised or the process stops."""
        self._end(Ending.LOST)
        self._input("close")

    def abort(self) -> None:
        """The application aborts."""
        self._input("abort")

    def fail(self) -> None:
        """The peer violated the protocol."""
        self._input("fail")

    def groupDied(self, unread: int) -> None:
        """The link group has ended; C{unread} bytes are still read before."""
        self.isPresumed = False
        self._input("groupDied")
        if not unread:
            self.drained()

    def expired(self) -> None:
        """The peer did not close for C{LINGER_TIMEOUT}."""
        self._input("expired")

    def received(self, flags: int, unread: int) -> None:
        """Process the peer's state flags, after its cursors; C{unread} bytes are not read yet."""
        new = flags & ~self._peerFlags & _KNOWN
        if new:
            self._peerFlags |= new
            self.isPresumed = self.isPresumed and new == _DONE_FLAG
            if new & _ABORT_FLAG:
                self._input("peerAborted")
            elif new & _CLOSED_FLAG:
                self._input("peerClosed")
            else:
                self._input("peerDoneWriting")
            if not unread:
                self.drained()

    def peerLost(self, unread: int) -> None:
        """
        End as after an abort of the peer, because TCP shows that it is lost; C{unread} bytes are read before.

        TCP may also have been reset by a third party, so the buffer is not free before the peer's own end.
        """
        self.isPresumed = not self._peerFlags & (_CLOSED_FLAG | _ABORT_FLAG)
        self._input("peerAborted")
        if not unread:
            self.drained()

    def drained(self) -> None:
        """Report end of file or the reason of the end, because all received bytes are read."""
        waiting = self._afterRead
        if waiting:
            if waiting[0] is None:
                self._afterRead = waiting[1:]
                self.pending += (ReadEnded(),)
            else:
                self._input("readUp")

    # Actions

    def _send(self, flag: int) -> None:
        self.flags |= flag
        self.pending += (Send(self.flags),)

    def _sendDone(self) -> None:
        self._send(_DONE_FLAG)

    def _sendClosed(self) -> None:
        self._send(_CLOSED_FLAG)

    def _sendAbort(self) -> None:
        self._send(_ABORT_FLAG)

    def _readConnectionLost(self) -> None:
        self._afterRead += (None,)

    def _resetAfterRead(self) -> None:
        self._afterRead += (Ending.RESET,)

    def _lostAfterRead(self) -> None:
        self._afterRead += (Ending.LOST,)

    def _connectionEndedAfterRead(self) -> None:
        """Report the reason caused by the peer or the link, unless one has been reported."""
        for how in self._afterRead:
            if how is not None:
                self._end(how)
                break

    def _end(self, how: Ending) -> None:
        self._afterRead = ()
        if not self.isOver:
            self.isOver = True
            self.pending += (Ended(how),)

    def _connectionDone(self) -> None:
        self._end(Ending.DONE)

    def _connectionAborted(self) -> None:
        self._end(Ending.ABORTED)

    def _connectionBroken(self) -> None:
        self._end(Ending.BROKEN)

    def _connectionLost(self) -> None:
        self._end(Ending.LOST)

    def _release(self) -> None:
        if self.isPresumed:
            self.application, self.peer = ABORTED, OPEN
        else:
            self.pending += (Released(True),)

    def _abandon(self) -> None:
        self.pending += (Released(False),)


_ACTIONS: Final[dict[str, Callable[[Lifecycle], None]]] = {
    action: getattr(Lifecycle, f"_{action}")
    for rows in LIFECYCLE.values()
    for _application, _peer, *actions in rows.values()
    for action in actions
}


def diagram() -> str:
    """Return the lifecycle as a graph in the DOT language, for the documentation, without lost links."""
    names = {
        pair: f"{', '.join(pair)} ({' or '.join(state.name for state in states)})"
        for pair, states in _LINUX.items()
    }
    edges: dict[tuple[str, str], list[str]] = {}
    for here, rows in LIFECYCLE.items():
        for name, (application, peer, *actions) in rows.items():
            if here != (application, peer) and name != "groupDied":
                label = name + (f" / {', '.join(actions)}" if actions else "")
                edges.setdefault((names[here], names[application, peer]), []).append(label)
    lines = ["digraph closing {", "  node [shape=box, style=rounded];", "  edge [fontsize=10];"]
    lines += [f'  "{name}";' for name in names.values()]
    for (before, after), labels in edges.items():
        text = "\\n".join(labels)
        lines.append(f'  "{before}" -> "{after}" [label="{text}"];')
    return "\n".join([*lines, "}", ""])
