"""
Conversations between two processes, as data.

Each is played over C{tcp:} and over other streams, and both ends have to see the same
(L{txrdma.testing.streams.comparison}). The list is in L{txrdma.testing.streams.catalogue}.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from txrdma.testing.streams.script import parse

ROCE: Final = ("rocev2", "verbs", "rsocket", "btl")
"""Routes on which a queue pair belongs to its process."""


DRAWN: Final = "drawn-"
"""Begins the names of conversations that were drawn; the seed follows."""


class Way(Enum):
    """The layers or programs between the two ends."""

    DIRECT = "direct"
    TLS = "TLS"
    NEAR_PROXY = "a proxy that listens on TCP"
    FAR_PROXY = "a proxy that connects by TCP"


@dataclass(frozen=True, slots=True)
class Unlike:
    """
    A promise of TCP that a route cannot keep: what may happen there instead, and nothing else.

    @ivar routes: the names of the providers.
    @ivar end: C{"client"} or C{"server"}: who sees it.
    @ivar why: the reason, in a sentence for users.
    @ivar calls: what that end's protocol may see instead, as L{txrdma.testing.streams.transcript.Seen} has
        it; empty when the calls are the same.
    @ivar fewer: it may hear fewer bytes than over TCP.
    @ivar later: it may be told the end later than over TCP.
    """

    routes: tuple[str, ...]
    end: str
    why: str
    calls: tuple[str, ...] = ()
    fewer: bool = False
    later: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """
    Calls that the protocol of an end may see, other than C{dataReceived}.

    @ivar end: C{"client"} or C{"server"}.
    @ivar calls: as L{txrdma.testing.streams.transcript.Seen} has them.
    @ivar heard: bytes that have to come with these calls.
    """

    end: str
    calls: tuple[str, ...]
    heard: int = 0


@dataclass(frozen=True, slots=True)
class Conversation:
    """
    A conversation between two ends, each of them with its script.

    @ivar name: words joined by hyphens.
    @ivar about: what happens, in a sentence.
    @ivar client: the script of who connects; L{txrdma.testing.streams.script} has its words.
    @ivar server: the script of who listens; empty when nobody does.
    @ivar races: why TCP itself may end in several ways; it is then run several times, and each of its
        outcomes is good.
    @ivar also: calls that an end may see by such a race where TCP was never seen to do so here, but may.
    @ivar seconds: how long the scripts take of themselves.
    @ivar isQuick: it is a part of C{make test}.
    @ivar isEverywhere: it is played on every reactor, not only on one.
    """

    name: str
    about: str
    client: str
    server: str
    races: str = ""
    also: tuple[Outcome, ...] = ()
    seconds: float = 0.0
    way: Way = Way.DIRECT
    isQuick: bool = False
    isEverywhere: bool = False
    unlike: tuple[Unlike, ...] = ()

    def alsoFor(self, end: str) -> tuple[Outcome, ...]:
        """Outcomes that are good for an end, though TCP was not seen to bring them about."""
        return tuple(each for each in self.also if each.end == end)

    def enoughFor(self, end: str) -> int | None:
        """The number of bytes on which an end takes its leave; None if it hears all."""
        return parse(self.client if end == "client" else self.server).enough

    def unlikeOn(self, route: str, end: str) -> tuple[Unlike, ...]:
        """Declared differences for an end on a route."""
        return tuple(each for each in self.unlike if route in each.routes and each.end == end)
