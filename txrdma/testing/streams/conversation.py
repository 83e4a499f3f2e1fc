"""
Conversations between two processes, as data.

Each runs over C{tcp:} and over other streams, and both ends must see the same
(L{txrdma.testing.streams.comparison}). The list is in L{txrdma.testing.streams.catalogue}.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from txrdma.testing.streams.script import parse

ROCE: Final = ("rocev2", "verbs", "rsocket", "btl")
"""Routes on which a queue pair belongs to its process, and ends with it."""


DRAWN: Final = "drawn-"
"""Prefix of the names of drawn conversations; the seed follows."""


class Via(Enum):
    """The layers or programs between the two ends."""

    DIRECT = "direct"
    TLS = "TLS"
    NEAR_PROXY = "a proxy that listens on TCP"
    FAR_PROXY = "a proxy that connects by TCP"


@dataclass(frozen=True, slots=True)
class Unlike:
    """
    A promise of TCP that a route cannot keep: a difference that is accepted there.

    @ivar routes: names of the providers.
    @ivar end: C{"client"} or C{"server"}: the end that sees it.
    @ivar why: the reason, in a sentence for users.
    @ivar calls: calls that the end's protocol may see instead, as in
        L{txrdma.testing.streams.transcript.Seen}; empty if the calls are the same.
    @ivar fewer: whether it may receive fewer bytes than over TCP.
    @ivar later: whether the end may be reported later than over TCP.
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
    @ivar calls: as in L{txrdma.testing.streams.transcript.Seen}.
    @ivar received: number of bytes that must be received with these calls.
    """

    end: str
    calls: tuple[str, ...]
    received: int = 0


@dataclass(frozen=True, slots=True)
class Conversation:
    """
    A conversation between two ends, each of them with its script.

    @ivar name: words joined by hyphens.
    @ivar about: description in a sentence.
    @ivar client: script of the client, in the language of L{txrdma.testing.streams.script}.
    @ivar server: script of the server; empty if nobody listens.
    @ivar races: why TCP itself may end in several ways; it then runs several times, and each outcome is
        accepted.
    @ivar also: further outcomes of such races, which TCP was never seen to have here, but may have.
    @ivar seconds: duration of the scripts themselves.
    @ivar isQuick: whether it is a part of C{make test}.
    @ivar isEverywhere: whether it runs on every reactor, not only on one.
    """

    name: str
    about: str
    client: str
    server: str
    races: str = ""
    also: tuple[Outcome, ...] = ()
    seconds: float = 0.0
    via: Via = Via.DIRECT
    isQuick: bool = False
    isEverywhere: bool = False
    unlike: tuple[Unlike, ...] = ()

    def alsoFor(self, end: str) -> tuple[Outcome, ...]:
        """Return the further outcomes that are accepted at an end."""
        return tuple(each for each in self.also if each.end == end)

    def enoughFor(self, end: str) -> int | None:
        """Return the number of bytes after which an end leaves; None if it receives everything."""
        return parse(self.client if end == "client" else self.server).enough

    def unlikeOn(self, route: str, end: str) -> tuple[Unlike, ...]:
        """Return the declared differences at an end on a route."""
        return tuple(each for each in self.unlike if route in each.routes and each.end == end)
