"""
Random conversations, drawn by seeds and compared with C{tcp:} like others.

The ends write alternately or concurrently, in many patterns and sizes; they read slowly, pause, or are busy
meanwhile; then one of them ends the conversation like real programs do. Only scripts whose outcome TCP
determines, apart from races, are drawn, without the declared differences of the catalogue and without delayed
calls. TCP has many races, and some of its outcomes are rare: compare both transcripts before you trust a
difference.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from random import Random
from threading import Lock
from typing import Final

from txrdma.testing.streams.comparison import complaints, complaintsAboutTCP
from txrdma.testing.streams.conversation import Conversation, DRAWN, Unlike
from txrdma.testing.streams.matrix import Verdict
from txrdma.testing.streams.orders import CLIENT, SERVER
from txrdma.testing.streams.provider import Provider, PROVIDERS, SHARED_MEMORY, TCP
from txrdma.testing.streams.runner import ConversationRunner
from txrdma.testing.streams.script import parse

MOST_PLAYS: Final = 22
"""Number of runs over TCP after which an outcome that has not occurred is considered impossible."""

_FIRST_PLAYS: Final = 2
_MORE_PLAYS: Final = 4

_SIZES: Final = (1, 5, 44, 1000, 4096, 16_384, 65_535, 65_536, 65_537, 131_072, 300_000, 1_000_000, 3_000_000)
_MOST: Final = 8_000_000
_ONCE: Final = ("push", "pull", "file")
_DROPPED: Final = "an abort may discard data in flight, or deliver it"
_DEADLY: Final = frozenset(("kill", "exit"))


class _End:
    """
    The script of an end while it is drawn.

    @ivar output: number of bytes that it has written after all steps so far; C{received}: number that it has
        received then.
    @ivar isSlow: whether it pauses after each received piece; C{pauses}: whether it pauses at all.
    """

    def __init__(self, random: Random) -> None:
        self._random = random
        self._rules: dict[str, list[str]] = {"made": []}
        self._hasProduced = self.isSlow = self.pauses = False
        self.output = self.received = 0

    @property
    def text(self) -> str:
        """The script of this end, in the language of L{txrdma.testing.streams.script}."""
        return "\n".join(f"{occasion}: {'; '.join(steps)}" for occasion, steps in self._rules.items())

    @property
    def occasion(self) -> str:
        """The occasion on which everything that the other end has written so far has been received."""
        return f"received {self.received}" if self.received else "made"

    def does(self, *steps: str, on: str = "") -> None:
        """Add steps, by default for the occasion on which everything has been received."""
        self._rules.setdefault(on or self.occasion, []).extend(steps)

    def meets(self) -> None:
        """Wait until the peer has made the connection too, unless something was received from it."""
        if not self.received:
            self.does("settle")

    def resumes(self) -> None:
        """
        End all pauses before the reactor stops.

        Twisted removes the socket of a paused TCP connection from the reactor, and does not report its end.
        """
        if self.pauses:
            self.does("turn", "resume")  # a slow end pauses after the steps that run in dataReceived

    def writes(self, most: int, isSwift: bool = False, on: str = "") -> int:
        """
        Write some bytes like a real program: at once, in pieces, slowly, or by a producer.

        @param isSwift: whether everything is written at once, in one iteration.
        @return: the number of bytes.
        """
        random = self._random
        size = min(random.choice(_SIZES), most)
        forms: list[Callable[[], Sequence[str]]] = [
            lambda: [f"write {size}"],
            lambda: [f"write {size} by {_piece(random, size, 300)}"],
            lambda: [f"sequence {size} by {_piece(random, size, 2000)}"],
        ]
        if not isSwift:
            forms.append(
                lambda: [f"trickle {size} by {_piece(random, size, 12)} every 0.00{random.randint(0, 9)}"]
            )
            if not self._hasProduced:
                forms += [lambda: [f"{random.choice(_ONCE)} {size}", "await sent"]] * 2
        steps = random.choice(forms)()
        self._hasProduced |= steps[-1] == "await sent"
        if not isSwift and random.random() < 0.2:
            self.does(random.choice(("turn", "wait 0.02")), on=on)
        self.does(*steps, on=on)
        self.output += size
        return size

    def listens(self, size: int) -> None:
        """Read this many bytes of the other end, in a random manner."""
        random = self._random
        manner = random.random()
        if manner < 0.15 and not self.isSlow:
            self.pauses = True
            self.does("pause", f"wait 0.{random.randint(1, 9):02}", "resume")
        elif manner < 0.25:
            self.does(f"block 0.{random.randint(1, 20):02}")
        elif manner < 0.35 and not self.isSlow and size > 1:
            self.pauses = True
            part = self.received + random.randint(1, size - 1)
            self.does("pause", f"wait 0.{random.randint(1, 9):02}", "resume", on=f"received {part}")
        elif manner < 0.4 and size > 1:
            self.does(
                f"block 0.{random.randint(1, 9):02}",
                on=f"received {self.received + random.randint(1, size - 1)}",
            )
        self.received += size


def _piece(random: Random, size: int, count: int) -> int:
    """Return a random length of pieces, so that there are at most C{count} of them."""
    return random.randint(max(1, -(-size // count)), size)


def drawn(seed: int) -> Conversation:
    """Draw a conversation, which is the same for the same seed."""
    random = Random(seed)
    client, server = _End(random), _End(random)
    for end in (client, server):
        if random.random() < 0.1:
            end.isSlow = end.pauses = True
            end.does(f"slowly 0.00{random.randint(1, 5)}")
    for _ in range(random.randint(0, 4)):
        most = _MOST - client.output - server.output
        if random.random() < 0.2:
            sizes = [end.writes(most // 2, isSwift=True) for end in (client, server)]
            server.received += sizes[0]
            client.received += sizes[1]
        else:
            speaker, listener = random.sample((client, server), 2)
            listener.listens(speaker.writes(most))
    leaver, other = random.sample((client, server), 2)
    name, draw = random.choice(_ENDS)
    draw(random, leaver, other)
    count = _repeat(random, client, server) if name in _REPEATED else 1
    routes = tuple(each.name for each in PROVIDERS)
    unlike = [Unlike(routes, end, _DROPPED, fewer=True) for end in (CLIENT, SERVER)]
    return Conversation(
        f"{DRAWN}{seed}",
        f"Drawn by the seed {seed}: in the end the {'client' if leaver is client else 'server'} {name}, "
        f"in {count} connection{'s' if count > 1 else ''}.",
        client=client.text,
        server=server.text,
        races="it was drawn without regard to them",
        seconds=5.0,
        unlike=tuple(unlike) if name == "aborts at once" else (),
    )


def _repeat(random: Random, client: _End, server: _End) -> int:
    """Draw the number of connections, which are concurrent or consecutive."""
    if random.random() < 0.6:
        return 1
    count = random.randint(2, 9)
    isParallel = random.random() < 0.5
    again = f"again until {count}"
    if isParallel:
        client.does(again, on="made")
        client.does(f"stop after {count}", on="lost")
    else:
        client.does(again, f"stop after {count}", on="lost")
    server.does(f"stop after {count}", on="lost")
    return count


# How conversations end


def _closes(random: Random, leaver: _End, other: _End) -> None:
    if random.random() < 0.5:
        other.listens(leaver.writes(_MOST))
    leaver.does(*random.choice((["lose"], ["lose", "lose"], ["settle", "lose"])))
    if random.random() < 0.1:
        leaver.does("write 5")


def _halfCloses(random: Random, leaver: _End, other: _End) -> None:
    if random.random() < 0.5:
        other.listens(leaver.writes(_MOST))
    leaver.does("half")
    leaver.does("lose", on="read-lost")
    if random.random() < 0.2:
        return  # the other end's protocol is not half-closeable
    if random.random() < 0.7:
        leaver.received += other.writes(_MOST, isSwift=random.random() < 0.5, on="read-lost")
    # With both halves closed, Twisted's TCP never reports the end to an end that does not close.
    if random.choice((False, False, True)):
        other.does("half", on="read-lost")
        other.does("lose", on="write-lost")  # a fast transport has written all after a time, and TCP not
    else:
        other.does("lose", on="read-lost")


def _aborts(random: Random, leaver: _End, other: _End) -> None:
    leaver.does("settle", "abort")


def _abortsAtOnce(random: Random, leaver: _End, other: _End) -> None:
    leaver.meets()
    leaver.writes(_MOST)
    leaver.does("abort")


def _stops(random: Random, leaver: _End, other: _End) -> None:
    leaver.does("settle", random.choice(("stop", "term")))


def _stopsAtOnce(random: Random, leaver: _End, other: _End) -> None:
    leaver.meets()
    leaver.resumes()
    other.listens(leaver.writes(_MOST))
    leaver.does(random.choice(("stop", "term")))


def _dies(random: Random, leaver: _End, other: _End) -> None:
    leaver.meets()
    if random.random() < 0.5:
        other.listens(leaver.writes(_MOST))
    leaver.does(random.choice(("settle", "turn")), random.choice(sorted(_DEADLY)))


def _leavesEarly(random: Random, leaver: _End, other: _End) -> None:
    size = other.writes(_MOST)
    steps = ("lose", "abort", "raise", "stop")
    # The end may have paused when it has received something: Twisted's TCP would not report the end then.
    step = random.choice(steps[:-1] if leaver.pauses else steps)
    leaver.does(step, on=f"received {leaver.received + random.randint(1, size)}")
    leaver.received += size


def _raises(random: Random, leaver: _End, other: _End) -> None:
    leaver.received += (size := other.writes(_MOST))
    leaver.does("raise", on=f"received {leaver.received - size + 1}" if random.random() < 0.5 else "")


def _bothClose(random: Random, leaver: _End, other: _End) -> None:
    for end in (leaver, other):
        end.does("settle", "lose")


_ENDS: Final = (
    ("closes", _closes),
    ("closes", _closes),
    ("half-closes", _halfCloses),
    ("half-closes", _halfCloses),
    ("aborts", _aborts),
    ("aborts at once", _abortsAtOnce),
    ("stops", _stops),
    ("stops at once", _stopsAtOnce),
    ("dies", _dies),
    ("leaves early", _leavesEarly),
    ("raises", _raises),
    ("closes when the other does", _bothClose),
)
_REPEATED: Final = ("closes", "half-closes", "aborts", "closes when the other does")
"""The ends after which more connections may follow, since both processes continue."""


def isFor(conversation: Conversation, provider: Provider) -> bool:
    """Return whether a provider can run a drawn conversation: only shared memory outlives its writer."""
    steps = {
        step.name
        for text in (conversation.client, conversation.server)
        for rule in parse(text).rules
        for step in rule.steps
    }
    return provider is SHARED_MEMORY or not steps & _DEADLY


class Drawn:
    """
    Runs of drawn conversations, a number of them at the same time.

    @ivar verdicts: verdicts so far.
    @ivar count: total number of verdicts.
    """

    def __init__(self, seeds: range, providers: Sequence[Provider], reactors: Sequence[str]) -> None:
        self._cases = [(drawn(seed), reactor) for seed in seeds for reactor in reactors]
        self._providers = providers
        self.count = sum(isFor(each, provider) for each, _ in self._cases for provider in providers)
        self.verdicts: list[Verdict] = []

    def play(
        self, runner: ConversationRunner, report: Callable[[Verdict], None], jobs: int | None = None
    ) -> None:
        """
        Run each conversation over TCP first, then over the providers that can run it.

        @param report: called with each verdict immediately, from one thread at a time.
        @param jobs: number of conversations that run concurrently.
        """
        lock = Lock()

        def one(case: tuple[Conversation, str]) -> None:
            for verdict in self._verdicts(runner, *case):
                with lock:
                    self.verdicts.append(verdict)
                    report(verdict)

        pool = ThreadPoolExecutor(jobs or 2 * (os.cpu_count() or 1))
        try:
            list(pool.map(one, self._cases))
        except BaseException:
            runner.close()
            raise
        finally:
            pool.shutdown(cancel_futures=True)

    def _verdicts(
        self, runner: ConversationRunner, conversation: Conversation, reactor: str
    ) -> Iterator[Verdict]:
        """Run one conversation, over TCP only a few times unless there is a difference."""
        tcp = [runner.play(conversation, TCP, reactor) for _ in range(_FIRST_PLAYS)]
        for provider in self._providers:
            if isFor(conversation, provider):
                ours = runner.play(conversation, provider, reactor)
                while (wrong := complaintsAboutTCP(tcp) or complaints(tcp, ours)) and len(tcp) < MOST_PLAYS:
                    tcp += [runner.play(conversation, TCP, reactor) for _ in range(_MORE_PLAYS)]
                yield Verdict(conversation, reactor, provider, tuple(wrong), tuple(tcp), ours)
