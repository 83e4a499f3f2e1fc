"""
A search through all states that the opening and the end of a connection can lead two ends to.

As in L{txrdma.test.support.cm.searching}, the state machines are the real ones, and the network may deliver
any message that was ever sent at any time, any number of times. Applications do everything that they may do,
at any time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import inf
from typing import Final, TypeVar

from txrdma.cm.core.closing import Closing
from txrdma.cm.core.connection import Connection
from txrdma.cm.core.events import (
    ConnectionEstablished,
    ConnectionRejected,
    ConnectionTimedOut,
    Disconnected,
    TimewaitOver,
)
from txrdma.cm.core.exchange import ExchangeCore
from txrdma.cm.layouts.messages import DREQ, LAP, MRA, REJ, RejectReason, REP, REQ
from txrdma.iba.types import GUID, QPN
from txrdma.kit.wire import Layout
from txrdma.test.support.cm.searching import copied as copiedPaths
from txrdma.test.support.cm.searching import explore, Found, PRIMARY, twinOf

AnyCore = TypeVar("AnyCore", bound=ExchangeCore)

Message = tuple[int, Layout, int]
"""The number of the end that gets it, the message, and its transaction."""

ENDED: Final = (ConnectionRejected, ConnectionTimedOut, Disconnected)
"""Events that report the end to a program, which gets one of them."""


def copied(connection: Connection) -> Connection:
    """Return an independent copy of a connection."""
    twin = twinOf(connection)
    twin.opening = _copied(connection.opening)
    twin.closing = None if connection.closing is None else _copied(connection.closing)
    twin.alternate = None if connection.alternate is None else copiedPaths(connection.alternate)
    return twin


def _copied(core: AnyCore) -> AnyCore:
    twin = twinOf(core)
    twin._events, twin._outgoing = [], []
    twin._inputs = core._table.begin(twin, core.state)
    return twin


def known(connection: Connection) -> tuple[object, ...]:
    """Return the part of a connection's state that determines its further behaviour."""
    opening, closing = connection.opening, connection.closing
    paths = connection.alternate is not None and connection.alternate.state
    found: list[object] = [
        paths,
        opening.isActive,
        opening.lingers,
        opening.remoteCommID,
        opening.reply is None,
    ]
    for core in (opening, closing):
        if core is not None:
            found += [core.state, core._retries, core.deadlineSeconds is None]
    if isinstance(closing, Closing):
        found += [closing._drep is None, closing._dreq]
    return tuple(found)


@dataclass
class World:
    """Two ends, all messages so far, and the events that their applications received."""

    ends: tuple[Connection, Connection]
    sent: frozenset[Message] = frozenset()
    notified: tuple[tuple[type, ...], tuple[type, ...]] = ((), ())

    def key(self) -> tuple[object, ...]:
        """Identity of the state: worlds with equal keys have the same future."""
        return known(self.ends[0]), known(self.ends[1]), self.sent, self.notified

    def after(self, which: int, step: Callable[[Connection], object]) -> World:
        """Return the world after a step of one end."""
        ends = list(self.ends)
        ends[which] = copied(ends[which])  # no step changes the other end
        step(ends[which])
        ends[which].settled(0.0)
        kinds = tuple(type(event) for event in ends[which].events())
        notified = list(self.notified)
        notified[which] += kinds
        sent = {(1 - which, each.message, each.transactionID) for each in ends[which].outgoing()}
        return replace(
            self, ends=(ends[0], ends[1]), sent=self.sent | sent, notified=(notified[0], notified[1])
        )


def isFor(connection: Connection, message: Layout) -> bool:
    """Return whether a manager would pass a message to this connection."""
    if isinstance(message, REQ):
        return True
    localID, remoteID = message.remoteCommID, message.localCommID  # type: ignore[attr-defined]  # all others
    if localID != connection.localCommID:
        return isinstance(message, REJ) and message.reason == RejectReason.TIMEOUT and not localID
    isFirst = connection.remoteCommID == 0 and isinstance(message, (REP, REJ, MRA))
    return isFirst or remoteID == connection.remoteCommID


def successors(world: World, isPeerToPeer: bool) -> Iterator[tuple[str, World]]:
    """Return every world that is one step away, with the name of the step."""
    for which, message, transaction in world.sent:
        if isFor(world.ends[which], message):

            def receive(end: Connection, message: Layout = message, transaction: int = transaction) -> None:
                end.received(message, transaction, 0.0)

            yield f"{type(message).__name__} to {which}", world.after(which, receive)
    for which, end in enumerate(world.ends):
        for name, step in _steps(end, which, isPeerToPeer):
            yield f"{name} by {which}", world.after(which, step)


def _steps(
    end: Connection, which: int, isPeerToPeer: bool
) -> Iterator[tuple[str, Callable[[Connection], object]]]:
    opening, state = end.opening, end.state
    request = REQ(
        localCommID=which + 1,
        localQPN=QPN(11 + which),
        localCAGUID=GUID.fromInt(which + 1),
        maxCMRetries=1,
        primary=PRIMARY,
    )
    reply = REP(localQPN=QPN(11 + which), localCAGUID=GUID.fromInt(which + 1))
    if state == "IDLE" and (isPeerToPeer or not which):
        yield "connect", lambda one: one.opening.connect(request, 100 * which, 0.0, isPeerToPeer)
    if state in ("REQ_RCVD", "MRA_REQ_SENT"):
        yield "accept", lambda one: one.opening.accept(reply, 0.0)
    if state in ("REP_RCVD", "MRA_REP_SENT"):
        yield "ready", lambda one: one.opening.ready(b"", 0.0)
    if state in ("REQ_RCVD", "REP_RCVD"):
        yield "reject", lambda one: one.opening.reject(RejectReason.CONSUMER_REJECT, 0.0)
    if end.deadline() is not None:
        yield "expired", lambda one: one.expired(inf)
    if state not in ("IDLE", "ENDED") and not opening.isOver:
        yield "disconnect", lambda one: one.disconnect(0.0)


def broken(world: World) -> str | None:
    """Return the invariant that is violated in this world, or None."""
    for end, notified in zip(world.ends, world.notified, strict=True):
        if notified.count(ConnectionEstablished) > 1:
            return "a connection is established twice"
        if sum(notified.count(kind) for kind in ENDED) > 1:
            return "a program gets two reports of the end"
        if TimewaitOver in notified and notified[-1] is not TimewaitOver:
            return "something happens when all is over"
        if any(isinstance(message, (DREQ, LAP)) for _, message, _ in world.sent) and not any(
            ConnectionEstablished in each for each in world.notified
        ):
            return "a connection ends that never was"
        if end.state == "DREQ_SENT" and ConnectionEstablished not in notified:
            return "an end is asked for that nobody heard of"
    return _agreement(world)


def _agreement(world: World) -> str | None:
    one, other = world.ends
    if all(end.opening.isEstablished for end in world.ends):
        if one.opening.isActive == other.opening.isActive:
            return "both ends are active, or both passive"
        if (one.remoteCommID, other.remoteCommID) != (2, 1):
            return "ends are connected to somebody else"
        if (one.localQPN, one.remoteQPN) != (other.remoteQPN, other.localQPN):
            return "queue pairs are connected to others"
    for end, peer in ((one, other), (other, one)):
        if end.opening.isEstablished and not end.opening.isActive and not peer.opening.isEstablished:
            return "the passive end is established before the active one"
    return None


def search(isPeerToPeer: bool = False, most: int = 200_000) -> Found:
    """Search all worlds of two ends that connect and disconnect, up to a number of them."""
    first = World((Connection(1, GUID.fromInt(1), 100), Connection(2, GUID.fromInt(2), 200)))

    def count(found: Found, world: World) -> None:
        found.states |= {end.state for end in world.ends}

    return explore(first, lambda world: successors(world, isPeerToPeer), broken, count, most)
