"""
One of two managers that lead one connection, from its REQ until its IDs are free.

L{txrdma.test.support.cm.exploring} searches the states of both. The state machines are the real ones, with
the dispatcher and its tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from txrdma.cm.core.connection import ConnectionCore
from txrdma.cm.core.dispatcher import Dispatcher, Listener, Managed
from txrdma.cm.core.events import (
    AlternatePathAbandoned,
    AlternatePathCancelled,
    AlternatePathLoaded,
    AlternatePathRejected,
    AlternatePathRequested,
    AlternatePathTimedOut,
    ConnectionEstablished,
    ConnectionRejected,
    ConnectionReplied,
    ConnectionRequested,
    ConnectionTimedOut,
    Disconnected,
    Event,
    MigrationUnexpected,
    PathMigrated,
    QPArmed,
    QPDisarmed,
    TimewaitOver,
)
from txrdma.cm.layouts.messages import (
    APR,
    APStatus,
    CMPath,
    DREP,
    DREQ,
    LAP,
    MRA,
    REJ,
    RejectReason,
    REP,
    REQ,
    RTU,
)
from txrdma.cm.layouts.paths import areSame, pathOf, reversedPath
from txrdma.error import InvalidRequest
from txrdma.iba.path import IBPath, PERMISSIVE_LID
from txrdma.iba.types import GID, GUID, QPN
from txrdma.kit.wire import Layout
from txrdma.test.support.cm.cores import copied, known
from txrdma.test.support.cm.ends import SERVICE

CLIENT: Final = 0
SERVER: Final = 1


def path(number: int) -> CMPath:
    """Return one of several paths between two hosts, as the client sees them."""
    ends = [GID.fromIP(f"10.{number}.0.{host}") for host in (1, 2)]
    lid = PERMISSIVE_LID
    return CMPath(localGID=ends[0], remoteGID=ends[1], localLID=lid, remoteLID=lid, localACKTimeout=19)


PRIMARY, FIRST, SECOND = path(0), path(1), path(2)

_NONE: Final = ""
"""The state that represents a missing connection."""

MAY_SEND: Final[dict[type[Layout], frozenset[str]]] = {
    REQ: frozenset({"REQ_SENT"}),
    MRA: frozenset({"MRA_REQ_SENT", "MRA_REP_SENT", "ESTABLISHED"}),
    REP: frozenset({"REP_SENT"}),
    RTU: frozenset({"ESTABLISHED"}),
    LAP: frozenset({"ESTABLISHED"}),
    APR: frozenset({"ESTABLISHED", _NONE}),
    DREQ: frozenset({"DREQ_SENT"}),
    DREP: frozenset({"TIMEWAIT", _NONE}),
    REJ: frozenset({"TIMEWAIT", _NONE}),
}
"""The states of IBA 12.9.7 in which an end has just sent a message of each kind."""

_ENDS: Final = (ConnectionRejected, ConnectionTimedOut, Disconnected)
_MAY_FOLLOW: Final = (AlternatePathAbandoned, AlternatePathCancelled, QPArmed, QPDisarmed)
_OUTCOMES: Final = (AlternatePathLoaded, AlternatePathRejected, AlternatePathTimedOut)


@dataclass(frozen=True)
class QP:
    """A queue pair: the path in use, the one it may migrate to, and an unreported migration."""

    path: CMPath
    alternate: CMPath | None = None
    isUntold: bool = False


class Sent(NamedTuple):
    """A message, the number of the end that gets it, its transaction, and its path."""

    target: int
    message: Layout
    transactionID: int
    path: IBPath


class Fault(Exception):
    """An end violates an invariant."""


class Bounds(NamedTuple):
    """
    What programs and queue pairs may do.

    @ivar loads: paths that the client loads, one after the other.
    @ivar migrations: times that a queue pair migrates at most.
    @ivar retries: repetitions of each message.
    @ivar mayReload: an alternate path may be replaced.
    @ivar connections: connections of the server, each by another delivery of the REQ.
    @ivar mayReject: programs reject REQs and REPs.
    @ivar isPeerToPeer: both ends connect, and none listens.
    @ivar isOpen: the connection is established at the beginning, and programs do not end it.
    """

    loads: tuple[CMPath, ...] = (FIRST,)
    migrations: int = 1
    retries: int = 1
    mayReload: bool = False
    connections: int = 1
    mayReject: bool = False
    isPeerToPeer: bool = False
    isOpen: bool = False


ONE_LOAD: Final = Bounds()


class End:
    """
    One end: its dispatcher, and its program with the queue pair.

    @ivar managed: the connection; None before and after it.
    @ivar qp: the queue pair; None when the program has closed it.
    @ivar waiting: the transaction of a LAP that the program has not answered.
    """

    def __init__(self, number: int, bounds: Bounds) -> None:
        self.number, self.bounds = number, bounds
        self.drawn = 0
        self.manager = Dispatcher(GUID.fromInt(number + 1), self._draw)
        self.listener = Listener(SERVICE, mayReload=bounds.mayReload)
        self._listen()
        self.managed: Managed | None = None
        self._begin()
        self.loads, self.migrations = bounds.loads, bounds.migrations
        self.connections = bounds.connections  # number of REQs that may still begin one
        self.sent: list[Sent] = []

    def _listen(self) -> None:
        if self.number == SERVER and not self.bounds.isPeerToPeer:
            self.manager.listen(self.listener)

    @property
    def primary(self) -> CMPath:
        """The path of the REQ."""
        return PRIMARY if self.number == CLIENT else reversedPath(PRIMARY)

    def _begin(self) -> None:
        """Reset the program, for another connection."""
        self.qp: QP | None = QP(self.primary)
        self.isEstablished = self.isEnded = False
        self.waiting: int | None = None
        self.asked: tuple[int, ...] = ()
        self.outcomes: tuple[int, ...] = ()

    def _draw(self) -> int:
        self.drawn += 1
        return (self.number + 1) * 1000 + 100 * self.drawn

    def twin(self) -> End:
        """Return an independent copy."""
        twin = End.__new__(End)
        vars(twin).update(vars(self))
        twin.sent = []
        old = self.manager
        new = twin.manager = Dispatcher(old.guid, twin._draw)
        twin.listener = Listener(SERVICE, mayReload=self.bounds.mayReload)
        twin._listen()
        for number in self.listener.waiting:
            twin.listener.waiting.add(old._connections[number].sender, number)
        twin.managed = None
        for key, managed in old._connections.items():
            listener = twin.listener if managed.listener is not None else None
            copy = Managed(key, copied(managed.connection), managed.path, listener, managed.sender)
            copy.usesAlternate = managed.usesAlternate
            new._connections[key] = copy
            for table, copies in ((old._byPeer, new._byPeer), (old._byQP, new._byQP)):
                for name in [each for each, other in table.items() if other is managed]:
                    copies[name] = copy
                    copy.names.append((copies, name))
            if managed in old._peerToPeer:
                new._peerToPeer[copy] = None
            new._schedule(copy)
            if managed is self.managed:
                twin.managed = copy
        return twin

    @property
    def state(self) -> str:
        return _NONE if self.managed is None else self.managed.connection.state

    @property
    def connection(self) -> ConnectionCore:
        assert self.managed is not None
        return self.managed.connection

    def key(self) -> tuple[object, ...]:
        """Identity of the state: ends with equal keys have the same future."""
        manager, managed = self.manager, self.managed
        found: list[object] = [
            *(self.qp, self.isEstablished, self.isEnded, self.waiting, self.asked, self.outcomes),
            *(len(self.loads), self.migrations, self.connections, self.drawn),
            *(tuple(manager._byPeer), tuple(manager._byQP), tuple(self.listener.waiting)),
            len(manager._peerToPeer),
        ]
        if managed is not None:
            found += [known(managed.connection), managed.path, managed.usesAlternate]
        return tuple(found)

    # Steps

    def steps(self) -> Iterator[tuple[str, Callable[[End], None]]]:
        """Return all that may happen to this end without a message or its peer."""
        state = self.state
        if not self.drawn and (self.number == CLIENT or self.bounds.isPeerToPeer):
            yield "connect", End.connect
        if state in ("REQ_RCVD", "MRA_REQ_SENT"):
            yield "accept", End.accept
        if state in ("REP_RCVD", "MRA_REP_SENT"):
            yield "ready", End.ready
        if state in ("REQ_RCVD", "REP_RCVD") and self.bounds.mayReject:
            yield "reject", End.reject
        if state == "ESTABLISHED" and self.loads and self.number == CLIENT:
            yield "load", End.load
        if self.waiting is not None:
            yield "reply LOADED", lambda end: end.reply(APStatus.LOADED)
            yield "reply REJECTED", lambda end: end.reply(APStatus.REJECTED)
        if self.qp is not None and self.qp.isUntold:
            yield "migration reported", End.migrationReported
        if self.managed is not None and self.managed.deadline is not None:
            yield "expired", End.expired
        if state not in (_NONE, "DREQ_SENT", "TIMEWAIT") and not self.bounds.isOpen:
            yield "disconnect", End.disconnect

    def connect(self) -> None:
        bounds, primary = self.bounds, self.primary
        qpn = QPN(11 + 10 * self.number)
        request = REQ(serviceID=SERVICE, localQPN=qpn, maxCMRetries=bounds.retries, primary=primary)
        self.managed = self.manager.connect(
            request, pathOf(primary), 0.0, bounds.isPeerToPeer, mayReload=bounds.mayReload
        )

    def accept(self) -> None:
        """Accept the REQ, with another queue pair for each connection."""
        number = QPN(12 + 10 * self.number + self.bounds.connections - self.connections)
        self.connection.opening.accept(REP(localQPN=number, localCAGUID=self.manager.guid), 0.0)

    def ready(self) -> None:
        """Answer the REP by an RTU."""
        self.connection.opening.ready(b"", 0.0)

    def reject(self) -> None:
        """Reject the REQ or the REP."""
        self.connection.opening.reject(RejectReason.CONSUMER_REJECT, 0.0)

    def load(self) -> None:
        """Load the next alternate path."""
        self.queryQP()
        before = self.connection._transactionID
        try:
            self.connection.loadAlternatePath(self.loads[0], 0.0)
        except InvalidRequest:
            self.connection._transactionID = before  # otherwise each refused request leads to another state
            return
        self.loads = self.loads[1:]

    def reply(self, status: APStatus) -> None:
        transactionID, self.waiting = self.waiting, None
        assert transactionID is not None
        self.connection.replyAlternatePath(transactionID, status, 0.0)

    def queryQP(self) -> None:
        """Query the queue pair, as adapters have to before a LAP is handled, and before a path is loaded."""
        self.migrationReported()

    def migrationReported(self) -> None:
        """Report a migration that the queue pair has made."""
        if self.qp is not None and self.qp.isUntold:
            self.qp = replace(self.qp, isUntold=False)
            self.connection.migrated(0.0)
            self.settle()

    def migrate(self) -> None:
        """Let the queue pair migrate to its alternate path."""
        assert self.qp is not None and self.qp.alternate is not None
        self.migrations -= 1
        self.qp = QP(self.qp.alternate, None, True)

    def expired(self) -> None:
        """Let the next deadline expire."""
        deadline = self.manager.deadline()
        assert deadline is not None
        self.manager.expired(deadline)

    def disconnect(self) -> None:
        """Disconnect, or answer the DREQ."""
        self.connection.disconnect(0.0)

    def mayReceive(self, message: Layout) -> bool:
        """Return whether a message is within the bounds: each REQ may begin another connection."""
        return not isinstance(message, REQ) or self.managed is not None or self.connections > 0

    def receive(self, sent: Sent) -> None:
        if isinstance(sent.message, LAP):
            self.queryQP()
        self.manager.received(sent.message, sent.transactionID, sent.path, 0.0)

    def settle(self) -> None:
        """Process all events, take the messages, and check the invariants."""
        manager = self.manager
        if self.managed is not None:
            manager.collect(self.managed, 0.0)
        while events := manager.events():
            for managed, event in events:
                self._act(managed, event)
        for each in manager.outgoing():
            self.sent.append(Sent(1 - self.number, each.message, each.transactionID, each.path))
            self._checkSent(each.message)
        if not manager._connections:
            self.managed = None
        elif self.qp is not None and self.state == "TIMEWAIT":
            self.qp = None
        self._checkTables()

    def _act(self, managed: Managed, event: Event) -> None:
        if isinstance(event, ConnectionRequested):
            self._begin()
            self.managed = managed
            self.connections -= 1
        elif isinstance(event, ConnectionEstablished):
            self._claim(not self.isEstablished, "a connection is established twice")
            self.isEstablished = True
        elif isinstance(event, _ENDS):
            self._claim(not self.isEnded, "a program gets two reports of the end")
            self.isEnded, self.qp, self.waiting = True, None, None
        elif isinstance(event, TimewaitOver):
            self._claim(managed.connection.isFree, "timewait is over, and the IDs are not free")
        elif isinstance(event, ConnectionReplied):
            self._claim(self.state == "REP_RCVD", "a REP is reported in another state")
        elif not isinstance(event, _MAY_FOLLOW):
            self._claim(not self.isEnded, f"{type(event).__name__} after the end")
        self._actOnPaths(event)

    def _actOnPaths(self, event: Event) -> None:
        if isinstance(event, AlternatePathRequested):
            self._claim(event.transactionID not in self.asked, "the program is asked twice about a LAP")
            self._claim(self.waiting is None, "two LAPs wait for the program")
            self.asked, self.waiting = (*self.asked, event.transactionID), event.transactionID
        elif isinstance(event, AlternatePathCancelled):
            self.waiting = None
        elif isinstance(event, _OUTCOMES):
            alternate = self.connection.alternate
            assert alternate is not None
            number = alternate._lapTransaction
            self._claim(number not in self.outcomes, "a LAP has two outcomes")
            self.outcomes = (*self.outcomes, number)
        elif isinstance(event, MigrationUnexpected):
            raise Fault("an end does not know to which path it migrated")
        elif self.qp is not None:
            if isinstance(event, QPDisarmed):
                self.qp = replace(self.qp, alternate=None)
            elif isinstance(event, QPArmed):
                self.qp = replace(self.qp, alternate=event.path)
            elif isinstance(event, PathMigrated):
                self._claim(areSame(event.path, self.qp.path), "an end takes another path for its own")

    def _claim(self, holds: bool, fault: str) -> None:
        if not holds:
            raise Fault(fault)

    def _checkSent(self, message: Layout) -> None:
        managed = self.manager._connections.get(getattr(message, "localCommID", 0))
        peer = getattr(message, "remoteCommID", None)
        if managed is not None and peer is not None and peer != managed.connection.remoteCommID:
            managed = None  # answers a message of a connection that this end does not have
        state = _NONE if managed is None else managed.connection.state
        kind = type(message)
        self._claim(state in MAY_SEND[kind], f"{kind.__name__} is sent in state {state or 'none'}")
        self._claim(kind is not DREQ or self.isEstablished, "a connection ends that was not established")
        if isinstance(message, APR) and message.apStatus == APStatus.LOADED and managed is not None:
            alternate = managed.connection.alternate
            isArmed = self.qp is not None and self.qp.alternate is not None
            self._claim(
                isArmed and alternate is not None, "APR loaded is sent, and the queue pair is not armed"
            )

    def _checkTables(self) -> None:
        manager = self.manager
        known = set(map(id, manager._connections.values()))
        for table in (manager._byPeer, manager._byQP):
            self._claim(known.issuperset(map(id, table.values())), "a table has a connection that is free")
        self._claim(
            set(self.listener.waiting) <= set(manager._connections),
            "a listener waits for a connection that is free",
        )
        for managed in manager._connections.values():
            self._claim(managed.deadline == managed.core.deadline(), "a deadline is not scheduled")
        if self.managed is None or self.qp is None or self.qp.isUntold or self.state == _NONE:
            return
        alternate = self.connection.alternate
        if alternate is None:
            return
        self._claim(areSame(alternate.primary, self.qp.path), "an end and its queue pair use different paths")
        if self.state == "ESTABLISHED":
            isUseless = alternate.isOutstanding and alternate.alternate is not None
            self._claim(not isUseless, "a LAP is outstanding, and there is an alternate path")
            self._claim(alternate.alternate == self.qp.alternate, "a queue pair is armed for another path")

    def becomesFree(self) -> bool:
        """Return whether all tables become empty if the program disconnects and no message arrives."""
        end = self.twin()
        for _ in range(20):
            if end.state not in (_NONE, "DREQ_SENT", "TIMEWAIT"):
                end.disconnect()
                end.settle()
            if end.managed is None or end.managed.deadline is None:
                break
            end.expired()
            end.settle()
        manager = end.manager
        tables = (
            *(manager._connections, manager._byPeer, manager._byQP, manager._peerToPeer),
            end.listener.waiting,
        )
        return not any(tables) and not any(manager._wheel._slots.values())


def openEnds(bounds: Bounds) -> tuple[End, End]:
    """Return the ends of a search: with an established connection, or without one."""
    client, server = End(CLIENT, bounds), End(SERVER, bounds)
    if bounds.isOpen:
        client.connect()
        client.settle()
        for end, peer, step in (
            (server, client, End.accept),
            (client, server, End.ready),
            (server, client, None),
        ):
            end.receive(peer.sent.pop())
            end.settle()
            if step is not None:
                step(end)
                end.settle()
    return client, server
