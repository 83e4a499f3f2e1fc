"""
Conversations between two processes, as data.

Each runs over C{tcp:} and over other streams, and both ends must report the same events
(L{txrdma.testing.streams.comparison}). The list is in L{txrdma.testing.streams.catalogue}.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from txrdma.testing.streams.script import parse, size

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
    @ivar end: C{"client"} or C{"server"}: the end that reports it.
    @ivar why: the reason, in a sentence for users.
    @ivar calls: calls that the end's protocol may get instead, as in
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
    Calls that the protocol of an end may get, other than C{dataReceived}.

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
    @ivar server: script of the server; empty if there is none.
    @ivar races: why TCP itself has several possible outcomes; it then runs several times, and each outcome is
        accepted.
    @ivar also: further outcomes of such races, which TCP may have, but did not have in tests.
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


def conversations(
    text: str, unlike: Mapping[str, tuple[Unlike, ...]] | None = None, via: Via = Via.DIRECT
) -> tuple[Conversation, ...]:
    """
    Parse conversations. Each begins with its name and, in parentheses, C{quick} and C{everywhere}::

        closes-on-word (quick)
            The server closes when it has received the last message.
            client made: write 300kB
            server received 300kB: write 5; lose

    Each line C{client} or C{server} is one of the end's script; C{races}, C{also}, C{unlike} and C{seconds}
    set the attributes of these names. In C{also}, calls are separated by commas; received bytes follow a
    semicolon.

    @param unlike: the differences that C{unlike} refers to.
    """
    found: list[Conversation] = []
    for block in re.split(r"\n(?=\S)", text.strip()):
        head, about, *lines = block.split("\n")
        name, _, runs = head.rstrip(")").partition(" (")
        scripts: dict[str, list[str]] = {"client": [], "server": []}
        also: list[Outcome] = []
        more: dict[str, Any] = {}
        for line in map(str.strip, lines):
            key, _, value = line.partition(" ")
            if key in scripts:
                scripts[key].append(value)
            elif key == "also":
                end, _, outcome = value.partition(" ")
                calls, _, received = outcome.partition("; ")
                also.append(Outcome(end, tuple(calls.split(", ")), size(received or "0")))
            elif key == "unlike":
                more["unlike"] = (unlike or {})[value]
            else:
                more[key] = float(value) if key == "seconds" else value
        client, server = map("\n".join, scripts.values())
        isQuick, isEverywhere = "quick" in runs, "everywhere" in runs
        found.append(
            Conversation(
                name,
                about.strip(),
                client,
                server,
                also=tuple(also),
                via=via,
                isQuick=isQuick,
                isEverywhere=isEverywhere,
                **more,
            )
        )
    return tuple(found)
