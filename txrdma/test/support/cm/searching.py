"""
A search through all states to which alternate paths lead two ends of a connection, over a hostile network.

The state machines are the real ones. The network may deliver any message that was ever sent at any time, any
number of times, so the search includes every loss, duplication, delay and reordering. A queue pair migrates
when both ends are armed, and each end is notified later; before a LAP is processed or another path is loaded,
the queue pair is queried, so a migration is always reported first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from math import inf
from typing import Any, cast, Final, Protocol, TypeVar

from txrdma.cm.core.alternate import Alternate, PathEnds
from txrdma.cm.core.events import (
    AlternatePathCancelled,
    AlternatePathLoaded,
    AlternatePathRejected,
    AlternatePathRequested,
    AlternatePathTimedOut,
    MigrationUnexpected,
    PathMigrated,
    QPArmed,
    QPDisarmed,
)
from txrdma.cm.core.exchange import RetryPolicy
from txrdma.cm.layouts.messages import APStatus, CMPath, LAP
from txrdma.cm.layouts.paths import areSame, reversedPath
from txrdma.error import InvalidRequest
from txrdma.iba.path import PERMISSIVE_LID
from txrdma.iba.types import GID, QPN
from txrdma.kit.wire import Layout

REQUEST: Final = 77
"""The transaction of the connection's REQ."""

Message = tuple[bool, Layout, int]
"""Whether it goes to the active end, the message, and its transaction."""


class Keyed(Protocol):
    """A state of two ends; states with equal keys have the same future."""

    def key(self) -> Hashable:
        """The identity of the state."""


AnyWorld = TypeVar("AnyWorld", bound=Keyed)


def path(number: int) -> CMPath:
    """Return one of several paths between two hosts, as the active end sees them."""
    ends = [GID.fromIP(f"10.{number}.0.{host}") for host in (1, 2)]
    lid = PERMISSIVE_LID
    return CMPath(localGID=ends[0], remoteGID=ends[1], localLID=lid, remoteLID=lid, localACKTimeout=19)


PRIMARY, FIRST, SECOND = path(0), path(1), path(2)


def made(isActive: bool, **more: Any) -> Alternate:
    """Create one end of a connection with a primary path only."""
    numbers = (1, 2, QPN(11), QPN(12)) if isActive else (2, 1, QPN(12), QPN(11))
    return Alternate(
        PathEnds(*numbers, REQUEST),
        isActive=isActive,
        primary=PRIMARY if isActive else reversedPath(PRIMARY),
        alternate=None,
        retryPolicy=RetryPolicy(20, 18, 1),
        **more,
    )


Copied = TypeVar("Copied")


def twinOf(core: Copied) -> Copied:
    """Return a shallow copy of an object, faster than C{copy}."""
    kind = type(core)
    twin = kind.__new__(kind)
    for name in _slotNames(cast(Hashable, kind)):
        setattr(twin, name, getattr(core, name))
    if hasattr(core, "__dict__"):
        vars(twin).update(vars(core))
    return twin


@cache
def _slotNames(kind: Any) -> tuple[str, ...]:
    return tuple(name for each in kind.__mro__ for name in vars(each).get("__slots__", ()))


def copied(core: Alternate) -> Alternate:
    """Return an independent copy of an end."""
    twin = twinOf(core)
    twin._events, twin._outgoing = [], []
    twin._inputs = twin._table.begin(twin, core.state)
    return twin


def known(core: Alternate) -> tuple[object, ...]:
    """Return the part of an end's state that determines its further behaviour."""
    answered = core._answered
    return (
        *(core.state, core.primary, core.alternate, core._lapTransaction, core._retries, core._timedOut),
        *(core._path if core.isOutstanding else None, core.deadlineSeconds is None, core._newest),
        answered and (answered.transactionID, answered.path, answered.response.apStatus),
    )


@dataclass(frozen=True)
class QP:
    """A queue pair: the path in use, the one it may migrate to, and an unreported migration."""

    path: CMPath
    alternate: CMPath | None = None
    isUntold: bool = False


@dataclass
class World:
    """Two ends, their queue pairs, all messages so far, and the requests that applications may still make."""

    active: Alternate
    passive: Alternate
    qps: tuple[QP, QP]
    sent: frozenset[Message] = frozenset()
    toLoad: tuple[CMPath, ...] = ()
    migrations: int = 1
    outcomes: tuple[int, ...] = ()
    asked: tuple[int, ...] = ()
    waiting: int | None = None
    complaints: list[str] = field(default_factory=list)

    def key(self) -> tuple[object, ...]:
        """Identity of the state: worlds with equal keys have the same future."""
        return (
            *(known(self.active), known(self.passive), self.qps, self.sent, len(self.toLoad)),
            *(self.migrations, self.outcomes, self.asked, self.waiting),
        )

    def twin(self) -> World:
        """Return a copy of the world, to be changed."""
        return replace(self, active=copied(self.active), passive=copied(self.passive), complaints=[])

    def core(self, isActive: bool) -> Alternate:
        """Return one of the two ends."""
        return self.active if isActive else self.passive

    def setQP(self, isActive: bool, qp: QP) -> None:
        """Replace a queue pair."""
        self.qps = (qp, self.qps[1]) if isActive else (self.qps[0], qp)

    def settle(self, isActive: bool) -> None:
        """Act on the events of an end, then send its messages, as an adapter does."""
        core = self.core(isActive)
        for event in core.events():
            self.act(isActive, event)
        self.sent |= {(not isActive, each.message, each.transactionID) for each in core.outgoing()}

    def act(self, isActive: bool, event: object) -> None:
        qp = self.qps[0 if isActive else 1]
        if isinstance(event, QPDisarmed):
            self.setQP(isActive, replace(qp, alternate=None))
        elif isinstance(event, QPArmed):
            self.setQP(isActive, replace(qp, alternate=event.path))
        elif isinstance(event, AlternatePathRequested):
            if event.transactionID in self.asked:
                self.complaints.append(f"the program is asked twice about LAP {event.transactionID}")
            if self.waiting is not None:
                self.complaints.append("two LAPs wait for the program")
            self.asked = (*self.asked, event.transactionID)
            self.waiting = event.transactionID
        elif isinstance(event, AlternatePathCancelled):
            self.waiting = None
        elif isinstance(event, (AlternatePathLoaded, AlternatePathRejected, AlternatePathTimedOut)):
            self.outcomes = (*self.outcomes, self.active._lapTransaction)
        elif isinstance(event, MigrationUnexpected):
            self.complaints.append("an end does not know to which path it migrated")
        elif isinstance(event, PathMigrated) and not areSame(event.path, qp.path):
            self.complaints.append("an end takes another path for the one in use")

    def migrationReported(self, isActive: bool) -> None:
        """Report a migration that the queue pair has made."""
        qp = self.qps[0 if isActive else 1]
        if qp.isUntold:
            self.setQP(isActive, replace(qp, isUntold=False))
            self.core(isActive).migrated(0.0)
            self.settle(isActive)


def successors(world: World, isTimely: bool) -> Iterator[tuple[str, World]]:
    """
    Return every world that is one step away, with the name of the step.

    @param isTimely: whether migrations are reported before a LAP is processed, as the adapters have to.
    """
    for isActive, message, transaction in world.sent:
        after = world.twin()
        if isTimely and isinstance(message, LAP):
            after.migrationReported(isActive)
        after.core(isActive).received(message, transaction, 0.0)
        after.settle(isActive)
        yield f"{type(message).__name__} {transaction}", after
    if world.active.deadlineSeconds is not None:
        after = world.twin()
        after.active.expired(inf)
        after.settle(True)
        yield "expired", after
    if world.toLoad:
        after = world.twin()
        if isTimely:
            after.migrationReported(True)
        number = 100 - len(world.toLoad)
        try:
            after.active.load(world.toLoad[0], number, 0.0)
        except InvalidRequest:
            pass
        else:
            after.toLoad = world.toLoad[1:]
            after.settle(True)
            yield f"load {number}", after
    if world.waiting is not None:
        for status in (APStatus.LOADED, APStatus.REJECTED):
            after = world.twin()
            after.waiting = None
            after.passive.reply(world.waiting, status, 0.0)
            after.settle(False)
            yield f"reply {status.name}", after
    yield from _migrations(world)


def _migrations(world: World) -> Iterator[tuple[str, World]]:
    first, second = world.qps
    if world.migrations and first.alternate is not None and second.alternate is not None:
        after = world.twin()
        after.migrations -= 1
        after.qps = (QP(first.alternate, None, True), QP(second.alternate, None, True))
        yield "migration", after
    for isActive, qp in ((True, first), (False, second)):
        if qp.isUntold:
            after = world.twin()
            after.migrationReported(isActive)
            yield f"{'active' if isActive else 'passive'} is informed of the migration", after


def broken(world: World) -> str | None:
    """Return the invariant that is violated in this world, or None."""
    first, second = world.qps
    if world.complaints:
        return world.complaints[0]
    if not areSame(first.path, reversedPath(second.path)):
        return "queue pairs use different paths"
    if first.alternate and second.alternate and not areSame(first.alternate, reversedPath(second.alternate)):
        return "queue pairs are armed for different paths"
    for core, qp in ((world.active, first), (world.passive, second)):
        if core.isOutstanding and core.alternate is not None:
            return "there is an alternate path while a LAP is outstanding"
        if not qp.isUntold and (core.alternate != qp.alternate or not areSame(core.primary, qp.path)):
            return "an end has other paths than its queue pair"
    if world.active.state == "IDLE" and first.alternate and first.alternate != _mirrored(second.alternate):
        return "the active end believes in an alternate path that the passive one has not"
    if len(set(world.outcomes)) != len(world.outcomes):
        return "a LAP has two outcomes"
    return None


def _mirrored(path: CMPath | None) -> CMPath | None:
    return None if path is None else reversedPath(path)


@dataclass
class Found:
    """
    The result of a search.

    @ivar worlds: number of different worlds; C{steps}: between them.
    @ivar fault: the violated invariant; C{story}: names of the steps that lead there.
    """

    worlds: int = 0
    steps: int = 0
    loaded: int = 0
    migrated: int = 0
    states: set[str] = field(default_factory=set)
    fault: str | None = None
    story: tuple[str, ...] = ()


def explore(
    first: AnyWorld,
    successors: Callable[[AnyWorld], Iterator[tuple[str, AnyWorld]]],
    broken: Callable[[AnyWorld], str | None],
    count: Callable[[Found, AnyWorld], None],
    most: float = inf,
) -> Found:
    """
    Search all reachable worlds breadth-first, until a promise does not hold in one.

    @param count: called with each world.
    @param most: the number of worlds to search.
    """
    found = Found()
    seen = {first.key()}
    waiting: deque[tuple[AnyWorld, tuple[str, ...]]] = deque([(first, ())])
    while waiting and found.worlds < most:
        world, story = waiting.popleft()
        found.worlds += 1
        count(found, world)
        for step, after in successors(world):
            found.steps += 1
            fault = broken(after)
            if fault is not None:
                found.fault, found.story = fault, (*story, step)
                return found
            key = after.key()
            if key not in seen:
                seen.add(key)
                waiting.append((after, (*story, step)))
    return found


def search(
    paths: tuple[CMPath, ...] = (FIRST, SECOND),
    isTimely: bool = True,
    migrations: int = 1,
    **more: Any,
) -> Found:
    """
    Search all worlds of two ends that load alternate paths.

    @param paths: what the active end's program loads, one after the other.
    @param migrations: the number of times that queue pairs migrate at most.
    @param more: arguments of both ends' L{Alternate}.
    """

    def count(found: Found, world: World) -> None:
        found.loaded += world.active.alternate is not None
        found.migrated += world.migrations < migrations

    qps = QP(PRIMARY), QP(reversedPath(PRIMARY))
    first = World(made(True, **more), made(False, **more), qps, toLoad=paths, migrations=migrations)
    return explore(first, lambda world: successors(world, isTimely), broken, count)
