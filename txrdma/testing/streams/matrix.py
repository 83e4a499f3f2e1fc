"""
The matrix: which conversations are played over which routes on which reactors, many at the same time, and
what came of it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

from txrdma.testing.streams.comparison import Complaint, complaints, complaintsAboutTCP
from txrdma.testing.streams.conversation import Conversation
from txrdma.testing.streams.provider import Provider, TCP
from txrdma.testing.streams.stage import Performance, Stage

RACES: Final = 4
"""Plays of a conversation with races over TCP, and as many more where ours was none of the outcomes."""

USUAL_REACTOR: Final = "epoll"
LONG: Final = 10.0
"""Seconds from which on a conversation is mostly waiting, so that any number of them may wait together."""

_LONG_AT_ONCE: Final = 60


@dataclass(frozen=True, slots=True)
class Verdict:
    """
    The verdict about a conversation over one route on one reactor.

    @ivar complaints: what is not as over TCP; none when all is well.
    @ivar tcp: how TCP did it; C{ours}: how the route did.
    """

    conversation: Conversation
    reactor: str
    provider: Provider
    complaints: tuple[Complaint, ...]
    tcp: tuple[Performance, ...]
    ours: Performance

    @property
    def passed(self) -> bool:
        """Whether all is as over TCP."""
        return not self.complaints


def judged(stage: Stage, tcp: Sequence[Performance], ours: Performance) -> Verdict:
    """Compare; where there are races, and ours was none of the outcomes, have TCP play some more."""
    conversation, reactor = ours.conversation, ours.reactor
    found = complaintsAboutTCP(tcp) or complaints(tcp, ours)
    if found and conversation.races:
        more = [stage.play(conversation, TCP, reactor) for _ in range(RACES)]
        tcp = [*tcp, *more]
        found = complaintsAboutTCP(tcp) or complaints(tcp, ours)
    return Verdict(conversation, reactor, ours.provider, tuple(found), tuple(tcp), ours)


def playTCP(stage: Stage, conversation: Conversation, reactor: str) -> list[Performance]:
    """Play a conversation over TCP, as often as it takes to know how TCP ends it."""
    return [stage.play(conversation, TCP, reactor) for _ in range(RACES if conversation.races else 1)]


@dataclass(slots=True)
class _Case:
    """A conversation on one reactor, over all routes."""

    conversation: Conversation
    reactor: str
    providers: Sequence[Provider]
    tcp: Future[list[Performance]] = field(default_factory=Future)


class Matrix:
    """
    Plays of conversations, by reactor and route.

    @ivar verdicts: those that there are so far.
    @ivar count: how many there will be.
    """

    def __init__(
        self,
        conversations: Sequence[Conversation],
        providers: Sequence[Provider],
        reactors: Sequence[str],
        isWhole: bool,
    ) -> None:
        """
        @param isWhole: all conversations on each reactor, instead of those that are to be played everywhere
            on all but the usual one.
        """
        self._cases = [
            _Case(conversation, reactor, [each for each in providers if conversation.name not in each.cannot])
            for reactor in reactors
            for conversation in conversations
            if isWhole or reactor == USUAL_REACTOR or conversation.isEverywhere
        ]
        # What takes longest begins first.
        self._cases.sort(key=lambda case: -case.conversation.seconds)
        self.count = sum(len(case.providers) for case in self._cases)
        self.verdicts: list[Verdict] = []

    def play(self, stage: Stage, tell: Callable[[Verdict], None], jobs: int | None = None) -> None:
        """
        Play all conversations of the matrix.

        @param tell: called with each verdict as soon as it is there, from one thread at a time.
        @param jobs: short conversations to be played at the same time.
        """
        lock = threading.Lock()

        def one(case: _Case, provider: Provider) -> None:
            ours = stage.play(case.conversation, provider, case.reactor)
            verdict = judged(stage, case.tcp.result(), ours)
            with lock:
                self.verdicts.append(verdict)
                tell(verdict)

        def judge(case: _Case) -> None:
            try:
                case.tcp.set_result(playTCP(stage, case.conversation, case.reactor))
            except BaseException as error:
                case.tcp.set_exception(error)

        short = ThreadPoolExecutor(jobs or 3 * (os.cpu_count() or 1))
        long = ThreadPoolExecutor(_LONG_AT_ONCE)
        futures: list[Future[None]] = []
        try:
            for case in self._cases:
                pool = long if case.conversation.seconds >= LONG else short
                futures.append(pool.submit(judge, case))
                futures += [pool.submit(one, case, provider) for provider in case.providers]
            for future in futures:
                future.result()
        except BaseException:
            stage.close()
            raise
        finally:
            for pool in (long, short):
                pool.shutdown(cancel_futures=True)
