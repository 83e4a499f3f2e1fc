"""
The connections of one member of a group to all others, and the failure of the group.

A group fails as a whole: when a member ends without closing its connections, or one of its operations fails,
all operations of all members fail. The first member that notices a failure sends its reason to the others.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Any, Final

from twisted.internet.defer import Deferred, DeferredList
from twisted.internet.error import ConnectionDone
from twisted.logger import Logger
from twisted.python.failure import Failure

from txrdma.btl.groups.errors import GroupFailed
from txrdma.btl.transport import BTLMessageTransport, LARGEST_TAG
from txrdma.error import PeerViolation, Refused
from txrdma.kit.strings import escaped
from txrdma.messages.protocol import MessageProtocol

_log = Logger()

FAILED: Final = LARGEST_TAG
"""Tag of the message that the group has failed: rank, or the size of the group, and text."""

DATA: Final = LARGEST_TAG - 1
"""Tag of the data of collective operations."""

WAKE: Final = LARGEST_TAG - 2
"""Tag of messages without data that wake a member: see L{txrdma.btl.groups._slots}."""

_RANK: Final = Struct(">H")

LONGEST_TEXT: Final = 512
"""Bytes of the text of a failure."""


class Member(MessageProtocol):
    """The connection to another member. C{ended}: fires when the connection has ended."""

    def __init__(self, members: Members, rank: int) -> None:
        self.ended: Deferred[None] = Deferred()
        self._members, self._rank = members, rank

    def connectionMade(self) -> None:
        self.transport.setHandler(FAILED, self._failed, inOrder=True)
        self.transport.setHandler(WAKE, lambda _: self._members.onWake())
        self._members.connected(self._rank, self)

    def _failed(self, data: memoryview) -> None:
        if not _RANK.size <= len(data) <= _RANK.size + LONGEST_TEXT:
            self.transport.abortConnection()
            raise PeerViolation(f"the reason of a failure has {len(data)} bytes")
        (rank,) = _RANK.unpack_from(data)
        text = escaped(bytes(data[_RANK.size :]).decode(errors="replace"))
        self._members.failed(rank if rank < self._members.size else None, text)

    def connectionLost(self, reason: Failure) -> None:
        try:
            self._members.lost(self._rank, reason)
        except Exception as error:
            _log.failure("the end of the connection to rank {rank} cannot be processed", rank=self._rank)
            self._members.fail(self._rank, f"rank {self._rank} was lost: {error!r}")
        finally:
            self.ended.callback(None)


class Members:
    """
    The connections of one member of a group to all others.

    @ivar transports: the transports of established connections, by rank.
    @ivar failure: why the group has failed, or None.
    @ivar left: the members that have left in order.
    @ivar onFailure: called when the group has failed.
    @ivar blame: called before that with the rank of the member that has failed, if it is known.
    @ivar onWake: called when a member wakes this one, or has left.
    @ivar complete: fires when all connections are established; fails with L{GroupFailed}.
    """

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self.transports: dict[int, BTLMessageTransport] = {}
        self.failure: GroupFailed | None = None
        self.left: set[int] = set()
        self.onFailure: Callable[[], None] = lambda: None
        self.blame: Callable[[int], None] = lambda rank: None
        self.onWake: Callable[[], None] = lambda: None
        self.complete: Deferred[None] = Deferred()
        self._connections: dict[int, Member] = {}
        self._missed: set[int] = set()
        self._isClosed = False
        if size == 1:
            self.complete.callback(None)

    def admit(self, rank: int) -> None:
        """
        Check that a member of this rank may connect.

        @raise Refused: this member connects to that one, or it has connected before.
        """
        if rank <= self.rank or rank >= self.size:
            raise Refused(f"the member {rank} does not connect to the member {self.rank}")
        if rank in self._connections or self._isClosed:
            raise Refused(f"the member {rank} has connected before")

    def connected(self, rank: int, connection: Member) -> None:
        """Process an established connection."""
        if rank in self._connections or self._isClosed:
            connection.transport.abortConnection()
            return
        self._connections[rank] = connection
        self.transports[rank] = connection.transport
        if self.failure is not None:
            self._notify(connection.transport)
        elif len(self.transports) == self.size - 1 and not self.complete.called:
            self.complete.callback(None)

    def lost(self, rank: int, reason: Failure) -> None:
        """Process the end of a connection: only a member that has closed in order has left the group."""
        if self._isClosed:
            return
        if not reason.check(ConnectionDone):
            self.fail(rank, f"rank {rank} was lost: {reason.getErrorMessage()}")
            return
        self.left.add(rank)
        if rank in self._missed:
            self.missed(rank)
        self.onWake()

    def missed(self, rank: int) -> None:
        """Process the failure of a message to or from a member. Its connection has ended, or is about to."""
        self._missed.add(rank)
        if rank in self.left:
            self.fail(rank, f"rank {rank} has left the group, but rank {self.rank} needs it")

    def fail(self, rank: int | None, text: str) -> None:
        """Fail the group because of a member, and notify the others."""
        if self.failure is None and not self._isClosed:
            self.failed(rank, text)
            for transport in self.transports.values():
                with _log.failuresHandled("a member cannot be notified of the failure of its group"):
                    self._notify(transport)

    def failed(self, rank: int | None, text: str) -> None:
        """Fail the group without notifying others, because another member has done so."""
        if self.failure is not None or self._isClosed:
            return
        self.failure = GroupFailed(text, rank)
        if rank is not None:
            with _log.failuresHandled("the rendezvous cannot be notified of the failure of a group"):
                self.blame(rank)
        if not self.complete.called:
            self.complete.errback(self.failure)
        with _log.failuresHandled("the operations of a group cannot be ended"):
            self.onFailure()

    def _notify(self, transport: Any) -> None:
        assert self.failure is not None
        rank = self.size if self.failure.rank is None else self.failure.rank
        text = str(self.failure).encode(errors="replace")[:LONGEST_TEXT]
        transport.post(FAILED, _RANK.pack(rank) + text)

    def close(self) -> Deferred[None]:
        """
        Close all connections when everything that was sent has arrived.

        @return: fires when all have ended.
        """
        self._isClosed = True
        ended = [connection.ended for connection in self._connections.values()]
        for connection in self._connections.values():
            with _log.failuresHandled("the connection to a member cannot be closed"):
                connection.transport.loseConnection()
        return DeferredList(ended).addCallback(lambda _: None)
