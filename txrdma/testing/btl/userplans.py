"""Plans of programs that use the byte transfer layer, which L{txrdma.testing.btl.users} runs."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from random import Random
from typing import Final

from txrdma.iba.types import MTU
from txrdma.sim.network import Faults
from txrdma.testing.programs import drawFaults

TAGS: Final = 4
"""Number of tags that the programs use."""


class Act(Enum):
    """A call of a program at one end of a connection, or an event."""

    SEND = "send a message with a tag"
    PRIORITY = "send an urgent message with a tag"
    MANY = "send many messages with a tag"
    MESSAGE = "send a message without a tag"
    PRODUCE = "register a producer of messages with a tag"
    CANCEL = "cancel one of the last results"
    RECEIVE = "receive a message of a tag"
    INTO = "receive a message of a tag into a buffer"
    ALL = "receive all messages of a tag"
    GIVE_BACK = "receive a message of a tag, and give it back"
    HANDLER = "set the handler of a tag"
    ORDERED_HANDLER = "set the handler of a tag whose messages are ordered"
    RAISING_HANDLER = "set a handler that raises an exception"
    NO_HANDLER = "drop messages of a tag"
    CALL = "call a function of the peer, which answers, answers later, or raises an exception"
    WRITE = "write into memory of the peer"
    READ = "read from memory of the peer"
    READY = "wait until little is queued"
    PAUSE = "pause messages without a tag"
    RESUME = "resume them"
    CLOSE = "close the connection"
    ABORT = "abort the connection"
    CLOCK = "set the clock of the host"
    SLEEP = "be busy for some time"
    PARTITION = "lose all packets for some time"
    CUT = "lose the TCP connection"


EVENTS: Final = frozenset((Act.CLOCK, Act.SLEEP, Act.PARTITION, Act.CUT))
"""Those that are not calls."""

REACTIONS: Final = (
    *(Act.SEND, Act.SEND, Act.PRIORITY, Act.MANY, Act.MESSAGE, Act.CANCEL, Act.CANCEL, Act.RECEIVE, Act.INTO),
    *(Act.ALL, Act.GIVE_BACK, Act.HANDLER, Act.ORDERED_HANDLER, Act.NO_HANDLER, Act.CALL, Act.WRITE),
    *(Act.READ, Act.READY, Act.PRODUCE, Act.PAUSE, Act.RESUME, Act.CLOSE, Act.ABORT),
)
"""Calls that a callback of a Deferred may make."""

_USUAL: Final = (
    *(Act.SEND,) * 8,
    *(Act.PRIORITY,) * 4,
    *(Act.MANY,) * 2,
    *(Act.MESSAGE,) * 3,
    *(Act.CANCEL,) * 6,
    *(Act.RECEIVE,) * 4,
    *(Act.INTO,) * 3,
    *(Act.ALL,) * 2,
    *(Act.CALL,) * 2,
    *(Act.WRITE, Act.READ, Act.READY, Act.GIVE_BACK, Act.PRODUCE, Act.PAUSE, Act.RESUME),
)
_RARE: Final = (
    *(Act.HANDLER, Act.HANDLER, Act.ORDERED_HANDLER, Act.ORDERED_HANDLER, Act.NO_HANDLER),
    *(Act.CLOCK, Act.CLOCK, Act.SLEEP, Act.PARTITION),
)
_FATAL: Final = (Act.CLOSE, Act.CLOSE, Act.ABORT, Act.RAISING_HANDLER, Act.CUT)


@dataclass(frozen=True)
class ActPlan:
    """
    The plan of one call or event.

    @ivar at: seconds after the connections are established; C{seconds}: duration, or change of a clock.
    @ivar connection: number of the connection; C{end}: 0 for the client, 1 for the server.
    @ivar size: bytes of a message or a buffer; C{number}: of messages, or of the result to cancel.
    @ivar reaction: a call that the callback of the result makes, with the same numbers.
    """

    at: float
    connection: int
    end: int
    act: Act
    tag: int
    size: int
    number: int
    seconds: float
    reaction: Act | None


@dataclass(frozen=True)
class UsersPlan:
    """
    The plan of a simulation.

    @ivar connections: number of connections between the two hosts.
    @ivar window: bytes of the window of each tag; C{full}: bytes at which a producer is paused.
    @ivar budget: largest number of bytes of incomplete messages; C{requests}: of unanswered requests.
    @ivar handlers: tags that have handlers at both ends from the beginning; C{ordered}: whether their
        messages are delivered in order.
    @ivar ending: the end that closes the connections at last: 0, 1, or 2 for both.
    @ivar early: number of the first acts whose calls are made when their end is connected, and the other one
        may not be; the network then has its faults from the beginning.
    """

    seed: int
    mtu: MTU
    faults: Faults
    connections: int
    window: int
    full: int
    budget: int
    requests: int
    handlers: tuple[int, ...]
    ordered: bool
    acts: tuple[ActPlan, ...]
    ending: int
    early: int


def drawUsers(seed: int) -> UsersPlan:
    """Draw the plan of a simulation."""
    random = Random(f"users {seed}")
    connections = random.choice((1, 1, 2))
    faults = drawFaults(random, 0.3, (0.0, 0.02, 0.1, 0.3))
    return UsersPlan(
        seed=seed,
        mtu=random.choice((MTU.MTU_256, MTU.MTU_1024, MTU.MTU_4096)),
        faults=faults,
        connections=connections,
        window=random.choice((1000, 4000, 20_000, 1 << 20)),
        full=random.choice((2000, 20_000, 1 << 20)),
        budget=random.choice((50_000, 100_000, 1 << 20)),
        requests=random.choice((1, 2, 8)),
        handlers=tuple(tag for tag in range(TAGS) if random.random() < 0.2),
        ordered=random.random() < 0.5,
        acts=_drawActs(random, connections),
        ending=random.randrange(3),
        early=random.choice((0, 0, 2, 10)) if faults.loss <= 0.1 else 0,  # else they may not be established
    )


def _drawActs(random: Random, connections: int) -> tuple[ActPlan, ...]:
    hurry = random.choice((0.0, 0.001, 0.1, 2.0))
    tags = random.choice((1, 2, TAGS))
    count = random.choice((3, 10, 40, 100))
    fatal = random.choice((0.0, 0.0, 1 / count))
    rare = random.choice((0.0, 0.05, 0.2))
    reacting = random.choice((0.0, 0.1, 0.5))
    acts, at = [], 0.0
    for _ in range(count):
        chance = random.random()
        choices = _FATAL if chance < fatal else _RARE if chance < fatal + rare else _USUAL
        if random.random() < 0.4:
            at = random.random() * hurry
        acts.append(
            ActPlan(
                at=at,
                connection=random.randrange(connections),
                end=random.randrange(2),
                act=random.choice(choices),
                tag=random.randrange(tags),
                size=random.choice((8, 8, 10, 60, 300, 1000, 3000, 12_000, 40_000)),
                number=random.choice((0, 0, 1, 2, 5, 40)),
                seconds=random.choice((0.001, 0.05, 1.0, 30.0, -0.001, -0.05, -1.0, -3600.0)),
                reaction=random.choice(REACTIONS) if random.random() < reacting else None,
            )
        )
    return tuple(acts)
