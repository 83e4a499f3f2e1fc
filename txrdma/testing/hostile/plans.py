"""Plans of hostile peers: mutations that are drawn by a seed."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from random import Random


class Kind(Enum):
    """A mutation of a message."""

    NEVER = "it is not sent"
    TWICE = "it is sent twice"
    MANY = "it is sent many times"
    SWAPPED = "it is sent after the following message"
    EARLY = "a later message is sent before it"
    AGAIN = "an earlier message is sent again after it"
    LONGER = "bytes are appended"
    SHORTER = "bytes are cut off"
    CHANGED = "bytes have other values"


class Ending(Enum):
    """How the hostile host ends its connection."""

    CLOSED = "it closes the connection"
    ABORTED = "it aborts the connection"
    KILLED = "its process is killed, and the system closes its sockets"
    VANISHED = "the host fails without closing its connections"
    VICTIM = "the victim closes the connection"


@dataclass(frozen=True)
class Mutation:
    """
    A change of one message of the hostile host.

    @ivar channel: channel of the message; see L{txrdma.testing.hostile.wiring}.
    @ivar at: number of the message in its channel, modulo the usual number of messages.
    @ivar count: number of copies or changed bytes, or distance to the other message.
    @ivar offset: offset of the changed bytes.
    @ivar value: new value of these bytes; if it is odd, the length in the message is adjusted.
    """

    channel: str
    at: int
    kind: Kind
    count: int
    offset: int
    value: int


@dataclass(frozen=True)
class HostilePlan:
    """
    The plan of a simulation.

    @ivar ending: how the connection of the hostile host ends.
    @ivar seconds: duration of that connection.
    @ivar rounds: number of messages that each end sends on it, of C{size} bytes each.
    @ivar connections: number of connections with the hostile host; only the last one carries messages.
    @ivar isServer: whether the victim connects to the hostile host, instead of vice versa.
    """

    seed: int
    mutations: tuple[Mutation, ...]
    ending: Ending
    seconds: float
    rounds: int
    size: int
    isServer: bool = False
    connections: int = 1


_REACH = 12
"""Number of messages that are mutated most often: the first ones of a channel."""


def _drawMutation(random: Random, channels: tuple[str, ...]) -> Mutation:
    kind = random.choice(list(Kind))
    reach = random.choice((3, _REACH, _REACH, 40))
    count = random.choice((1, 1, 2, 4, 16))
    if kind is Kind.MANY:
        count = random.choice((3, 20, 150, 150, 1500))
    elif kind is Kind.LONGER:
        count = random.choice((1, 2, 4, 64, 1000, 70_000))
    return Mutation(
        channel=random.choice(channels),
        at=random.randrange(reach),
        kind=kind,
        count=count,
        offset=random.randrange(random.choice((4, 16, 64, 1500))),
        value=random.choice((0, 1, 0x7F, 0x80, 0xFF, random.randrange(256))),
    )


def drawHostile(seed: int, channels: tuple[str, ...]) -> HostilePlan:
    """
    Draw the plan of a simulation.

    @param channels: channels of the protocol; important ones occur more than once.
    """
    random = Random(f"hostile {seed}")
    count = random.choice((1, 1, 2, 3, 6, 10))
    return HostilePlan(
        seed=seed,
        mutations=tuple(_drawMutation(random, channels) for _ in range(count)),
        ending=random.choice(list(Ending)),
        seconds=random.choice((0.001, 0.1, 2.0, 45.0)),
        rounds=random.choice((1, 5, 20)),
        size=random.choice((1, 100, 3000, 40_000)),
        isServer=random.random() < 0.3,
        connections=random.choice((1, 1, 1, 2, 10)),
    )
