"""
The lifecycle of message transports: a search through all states that an application and its peer can cause.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

from twisted.trial.unittest import SynchronousTestCase

from txrdma.cm.connections._life import Life, LifeEventKind, TABLE

MESSAGES = 2
"""Number of messages that the peer sends before it closes."""

DONE, LOST, ABORTED = "done", "lost", "aborted"

READ = 2
"""Outcome of the request that reads a long message; others are 1 or, if they have failed, 0."""

NAMED, READING, HAS_COMPLETED = "named", "reading", "its completion has arrived"


@dataclass(frozen=True)
class World:
    """
    One transport with its application and its peer.

    @ivar inbox: queued messages by their numbers, and outcomes of requests.
    @ivar arrived: messages that have arrived; C{delivered} those that the protocol has received.
    @ivar isPeerClosed: whether the peer has closed in order; its queue pair may not exist any more.
    @ivar long: progress of the long message that the peer waits for; it may send others meanwhile.
    @ivar hasRead: the oldest queued message is a long one that was read.
    @ivar outcomes: completions of requests that may still arrive.
    @ivar hasGivenUp: the application has closed, and was paused before the end or when it closed.
    @ivar reason: the reason of the end; None before.
    """

    place: str = "OPEN"
    inbox: tuple[tuple[LifeEventKind, int], ...] = ()
    isPaused: bool = False
    isReading: bool = False
    hasClosed: bool = False
    arrived: int = 0
    delivered: int = 0
    isPeerClosed: bool = False
    long: str = ""
    hasRead: bool = False
    outcomes: int = 2
    hasGivenUp: bool = False
    reason: str | None = None

    def life(self) -> Life[int]:
        """Return the lifecycle in this state."""
        life: Life[int] = Life()
        life._inputs = TABLE.begin(life, self.place)
        life._inbox = list(self.inbox)
        life.isPaused, life.isReading, life._hasClosed = self.isPaused, self.isReading, self.hasClosed
        return life

    def after(self, life: Life[int], **more: object) -> World:
        """Return this world with the state of a lifecycle, and with other changes."""
        changed = replace(self, **more)  # type: ignore[arg-type]
        gaveUp = changed.hasGivenUp or (life._hasClosed and life.isPaused)
        return replace(changed, place=life.state, inbox=tuple(life._inbox), isPaused=life.isPaused,
                       isReading=life.isReading, hasClosed=life._hasClosed, hasGivenUp=gaveUp)  # fmt: skip


def moves(world: World) -> Iterator[tuple[str, World]]:
    """Return all possible next steps of the application, the peer and the transport."""
    for isPaused in (True, False):
        if isPaused is not world.isPaused:
            life = world.life()
            life.isPaused = isPaused
            yield ("pause" if isPaused else "resume"), world.after(life)
    life = world.life()
    life.close()
    yield "close", world.after(life)
    life = world.life()
    if life.abort():
        yield "abort", world.after(life, reason=ABORTED)
    if not world.isPeerClosed and world.arrived < MESSAGES:
        life = world.life()
        life.arrived(LifeEventKind.MESSAGE, world.arrived)
        yield "message", world.after(life, arrived=world.arrived + 1)
        if not world.long:
            life = world.life()
            life.arrived(LifeEventKind.LONG, world.arrived)
            yield "name of a long message", world.after(life, arrived=world.arrived + 1, long=NAMED)
    if world.long == READING:
        life = world.life()
        if life.isClosed:  # completions that arrived before the end are handled after it
            life.wasRead(world.delivered)
        else:
            life.arrived(LifeEventKind.REQUEST, READ)
        yield "completion of the read", world.after(life, long=HAS_COMPLETED)
    if not world.isPeerClosed and world.arrived == MESSAGES and not world.long:
        life = world.life()
        life.peerClosed()
        yield "peer closes", world.after(life, isPeerClosed=True)
    if world.outcomes:
        for kind in (LifeEventKind.REQUEST, LifeEventKind.FAILURE, LifeEventKind.CREDIT):
            for isGood in (True, False) if kind is LifeEventKind.REQUEST else (kind is LifeEventKind.CREDIT,):
                life = world.life()
                life.arrived(kind, int(isGood))
                yield f"{kind.value} {isGood}", world.after(life, outcomes=world.outcomes - 1)
    yield from step(world)


def step(world: World) -> Iterator[tuple[str, World]]:
    """Return the next step of the transport: it processes one completion, or ends."""
    life = world.life()
    if life.isDrained and life.drained():
        yield "drained", world.after(life, reason=DONE)
    life = world.life()
    found = life.next()
    if found is None:
        return
    kind, what = found
    isMessage = kind in (LifeEventKind.MESSAGE, LifeEventKind.LONG)
    if kind is LifeEventKind.FAILURE:
        earlier = world.inbox[: world.inbox.index(found)]
        assert not any(each in (LifeEventKind.MESSAGE, LifeEventKind.LONG) for each, _ in earlier), world
    if isMessage:
        assert not world.isPaused and not world.isReading, world
        assert what == world.delivered, world
    if kind is LifeEventKind.LONG and not world.hasRead:
        assert life.mayPost, world
        life.isReading = True
        yield "read", world.after(life, long=READING)
    elif isMessage:
        hasRead = world.hasRead and kind is not LifeEventKind.LONG
        yield "deliver", world.after(life, delivered=world.delivered + 1, hasRead=hasRead)
    elif kind is LifeEventKind.REQUEST and what == READ:
        life.wasRead(world.delivered)
        yield "was read", world.after(life, long="", hasRead=True)
    elif kind is LifeEventKind.FAILURE or (kind is LifeEventKind.REQUEST and not what):
        ends = life.fail()
        yield "fail", world.after(life, reason=LOST if ends else world.reason)
    else:
        yield "act", world.after(life)


@cache
def reached() -> dict[World, tuple[World, str] | None]:
    """Return all states, each with the state before it and the step from there."""
    worlds: dict[World, tuple[World, str] | None] = {World(): None}
    waiting = deque(worlds)
    while waiting:
        world = waiting.popleft()
        for what, following in moves(world):
            if following not in worlds:
                worlds[following] = world, what
                waiting.append(following)
    return worlds


class SearchTests(SynchronousTestCase):
    """Invariants of every state."""

    def setUp(self) -> None:
        self.worlds = reached()

    def story(self, world: World) -> str:
        """Return the steps that have led to a state."""
        reported = []
        before = self.worlds[world]
        while before is not None:
            reported.append(before[1])
            before = self.worlds[before[0]]
        return ", ".join(reversed(reported))

    def test_doneMeansDeliveredUnlessClosedWhilePaused(self) -> None:
        ends = [world for world in self.worlds if world.reason == DONE]
        for world in ends:
            self.assertTrue(world.delivered == MESSAGES or world.hasGivenUp, self.story(world))
        self.assertTrue(any(world.delivered == MESSAGES and world.outcomes == 0 for world in ends))

    def test_messagesOfClosedPeerAreDelivered(self) -> None:
        for world in self.worlds:
            before = self.worlds[world]
            if world.isPeerClosed and world.reason == LOST:
                assert before is not None
                self.assertIsNotNone(before[0].reason, self.story(world))

    def test_unpausedProtocolEndsAfterPeersClose(self) -> None:
        for world in self.worlds:
            if not world.isPeerClosed or world.isPaused:
                continue
            following = world
            while steps := [each for _, each in step(following)]:
                following = steps[0]
            self.assertEqual(following.place, "CLOSED", self.story(world))

    def test_endIsFinalWithOneReason(self) -> None:
        for world in self.worlds:
            self.assertEqual(world.place == "CLOSED", world.reason is not None, self.story(world))
            if world.reason is not None:
                self.assertEqual([each.reason for _, each in moves(world)].count(world.reason),
                                 len(list(moves(world))))  # fmt: skip
                self.assertEqual(world.inbox, ())

    def test_everyTransitionIsReached(self) -> None:
        stateNames = {world.place for world in self.worlds}
        self.assertEqual(stateNames, set(TABLE.stateNames))
        self.assertGreater(len(self.worlds), 1000)
        self.assertTrue(any(world.place == "DRAINING" and world.hasRead for world in self.worlds))
