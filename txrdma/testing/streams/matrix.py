"""The matrix: runs conversations over routes and on reactors, many at a time, and collects the verdicts."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Final

from txrdma.testing.streams.comparison import Complaint, complaints, complaintsAboutTCP
from txrdma.testing.streams.conversation import Conversation
from txrdma.testing.streams.provider import Provider, TCP
from txrdma.testing.streams.runner import ConversationRun, ConversationRunner

RACES: Final = 4
"""Number of runs over TCP of a conversation with races, and of further ones in case of a difference."""

USUAL_REACTOR: Final = "epoll"
LONG: Final = 10.0
"""Seconds from which on a conversation mostly waits, so that many of them may run concurrently."""

_LONG_AT_ONCE: Final = 60


@dataclass(frozen=True, slots=True)
class Verdict:
    """
    The verdict on a conversation over one route on one reactor.

    @ivar complaints: differences from TCP that are not allowed; empty if it has passed.
    @ivar tcp: runs over TCP; C{ours}: run over the route.
    """

    conversation: Conversation
    reactor: str
    provider: Provider
    complaints: tuple[Complaint, ...]
    tcp: tuple[ConversationRun, ...]
    ours: ConversationRun

    @property
    def passed(self) -> bool:
        """Whether there are no complaints."""
        return not self.complaints


def judged(runner: ConversationRunner, tcp: Sequence[ConversationRun], ours: ConversationRun) -> Verdict:
    """Compare a run with TCP; in case of races and complaints, run it over TCP more often."""
    conversation, reactor = ours.conversation, ours.reactor
    found = complaintsAboutTCP(tcp) or complaints(tcp, ours)
    if found and conversation.races:
        more = [runner.play(conversation, tcp[0].provider, reactor) for _ in range(RACES)]
        tcp = [*tcp, *more]
        found = complaintsAboutTCP(tcp) or complaints(tcp, ours)
    return Verdict(conversation, reactor, ours.provider, tuple(found), tuple(tcp), ours)


def playTCP(
    runner: ConversationRunner, conversation: Conversation, reactor: str, patience: float = 1.0
) -> list[ConversationRun]:
    """Run a conversation over TCP, several times if it has races; C{patience}: factor for time limits."""
    tcp = replace(TCP, patience=patience)
    return [runner.play(conversation, tcp, reactor) for _ in range(RACES if conversation.races else 1)]


@dataclass(slots=True)
class _Case:
    """A conversation on one reactor, over all routes."""

    conversation: Conversation
    reactor: str
    providers: Sequence[Provider]
    tcp: Future[list[ConversationRun]] = field(default_factory=Future)


class Matrix:
    """
    Runs of conversations, by reactor and route.

    @ivar verdicts: verdicts so far.
    @ivar count: total number of verdicts.
    """

    def __init__(
        self,
        conversations: Sequence[Conversation],
        providers: Sequence[Provider],
        reactors: Sequence[str],
        isWhole: bool,
    ) -> None:
        """
        @param isWhole: whether all conversations run on each reactor; otherwise reactors other than the usual
            one run only those with C{isEverywhere}.
        """
        self._cases = [
            _Case(conversation, reactor, [each for each in providers if conversation.name not in each.cannot])
            for reactor in reactors
            for conversation in conversations
            if isWhole or reactor == USUAL_REACTOR or conversation.isEverywhere
        ]
        # The longest conversations start first.
        self._cases.sort(key=lambda case: -case.conversation.seconds)
        self.count = sum(len(case.providers) for case in self._cases)
        self.verdicts: list[Verdict] = []

    def play(
        self, runner: ConversationRunner, report: Callable[[Verdict], None], jobs: int | None = None
    ) -> None:
        """
        Run all conversations of the matrix.

        @param report: called with each verdict immediately, from one thread at a time.
        @param jobs: number of short conversations that run concurrently.
        """
        lock = threading.Lock()

        def one(case: _Case, provider: Provider) -> None:
            ours = runner.play(case.conversation, provider, case.reactor)
            verdict = judged(runner, case.tcp.result(), ours)
            with lock:
                self.verdicts.append(verdict)
                report(verdict)

        def judge(case: _Case) -> None:
            try:
                patience = min((each.patience for each in case.providers), default=1.0)
                case.tcp.set_result(playTCP(runner, case.conversation, case.reactor, patience))
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
            runner.close()
            raise
        finally:
            for pool in (long, short):
                pool.shutdown(cancel_futures=True)
