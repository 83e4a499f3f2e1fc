"""
Scripts: a small language for the actions of one end of a conversation.

A line begins with an occasion; steps follow, separated by semicolons::

    made: write 300kB; lose
    received 5: pause; wait 64; resume
    lost: stop

Steps run in order inside the call that was the occasion, up to the first that waits. A script without a line
for C{lost} (or C{failed}) stops its reactor then, as ordinary programs do. A script with C{read-lost} or
C{write-lost} runs a protocol that provides C{IHalfCloseableProtocol}.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Union

Value = Union[int, float, str]

OCCASIONS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "made": "`connectionMade` is called",
        "data": "`dataReceived` is called, each time",
        "received SIZE": "this number of bytes has been received in total; performed once",
        "read-lost": "`readConnectionLost` is called",
        "write-lost": "`writeConnectionLost` is called",
        "lost": "`connectionLost` is called",
        "failed": "the endpoint's `connect` fails",
    }
)
"""The occasions at which an end may act, each with its meaning."""

STEPS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "write SIZE": "one `transport.write` of the next bytes of this end's text",
        "write SIZE by SIZE": "the same in many writes of the second size, all in this reactor iteration",
        "sequence SIZE by SIZE": "the same by one `transport.writeSequence`",
        "trickle SIZE by SIZE every SECONDS": "the same, a write at a time; waits until all is written",
        "push SIZE": "register a push producer; the event `sent` is given when it is unregistered",
        "pull SIZE": "the same with a pull producer",
        "file SIZE": "the same with `twisted.protocols.basic.FileSender`",
        "hold": "register a push producer that never writes",
        "release": "unregister that producer",
        "lose": "`transport.loseConnection`",
        "half": "`transport.loseWriteConnection`",
        "abort": "`transport.abortConnection`",
        "pause": "`transport.pauseProducing`",
        "resume": "`transport.resumeProducing`",
        "slowly SECONDS": "from now on pause for these seconds after each `dataReceived`",
        "raise": "raise an exception, like a faulty program",
        "delay": "`reactor.callLater(0, ...)` of a call that is compared like the protocol's calls",
        "turn": "wait until the reactor has read and written once",
        "settle": "wait until all data in flight has certainly arrived",
        "wait SECONDS": "wait",
        "await WORD": "wait for an event, of this end or of the other; the runner gives `peer-ended`",
        "event WORD": "give the other end an event",
        "block SECONDS": "`time.sleep`: the reactor does nothing",
        "freeze SECONDS": "SIGSTOP to this process, and SIGCONT after these seconds",
        "again": "connect once more, in 10 ms",
        "again until COUNT": "the same immediately, unless so many connections have begun",
        "close-port": "`stopListening`; the event `closed` goes to the other end",
        "fork SECONDS": "`os.fork`, with a child that does nothing and ends after these seconds",
        "stop": "`reactor.stop`",
        "stop after COUNT": "the same when so many connections have been lost",
        "term": "SIGTERM to this process",
        "kill": "SIGKILL to this process",
        "exit": "`os._exit`",
    }
)
"""All steps of an end, each with its meaning."""

LEAVES: Final = frozenset(("lose", "abort", "raise", "stop", "term", "kill", "exit"))
"""Steps after which an end receives no more data."""

_UNITS: Final = {"": 1, "kB": 1000, "MB": 1_000_000}
_SIZE: Final = re.compile(r"(\d+)(kB|MB)?")
_WORD: Final = re.compile(r"[a-z]+(-[a-z]+)*")


class ScriptError(ValueError):
    """Raised when a script is invalid."""


def size(text: str) -> int:
    """Return the number of bytes in C{5}, C{300kB} or C{5MB}."""
    found = _SIZE.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is not a size: 5, 300kB, 5MB")
    return int(found[1]) * _UNITS[found[2] or ""]


def _word(text: str) -> str:
    if _WORD.fullmatch(text) is None:
        raise ValueError(f"{text!r} is not a word")
    return text


_VALUES: Final[dict[str, Callable[[str], Value]]] = {
    "SIZE": size,
    "SECONDS": float,
    "COUNT": int,
    "WORD": _word,
}


@dataclass(frozen=True, slots=True)
class Step:
    """
    A step of a script: an action of an end.

    @ivar name: the constant words of the step, such as C{"write by"}.
    @ivar values: the variable words: bytes, seconds, words.
    @ivar text: the step as written in the script.
    """

    name: str
    values: tuple[Value, ...]
    text: str


@dataclass(frozen=True, slots=True)
class Rule:
    """
    The steps of an end on one occasion.

    @ivar occasion: one of L{OCCASIONS}, without its size.
    @ivar size: number of bytes that must have been received, for C{received}.
    """

    occasion: str
    size: int
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Script:
    """The rules of one end, for all occasions."""

    rules: tuple[Rule, ...]

    def on(self, occasion: str) -> tuple[Step, ...]:
        """Return the steps after an event, such as C{made} or C{lost}; C{received} has separate steps."""
        return tuple(step for rule in self.rules if rule.occasion == occasion for step in rule.steps)

    @property
    def thresholds(self) -> tuple[Rule, ...]:
        """The rules for C{received}, sorted by their sizes."""
        return tuple(sorted((r for r in self.rules if r.occasion == "received"), key=lambda rule: rule.size))

    @property
    def enough(self) -> int | None:
        """
        Number of received bytes after which the end leaves, or None if it never leaves on received data.

        The number of bytes that arrive together with these is random.
        """
        received = [rule for rule in self.rules if rule.occasion in ("received", "data")]
        return min(
            (max(rule.size, 1) for rule in received if any(s.name in LEAVES for s in rule.steps)),
            default=None,
        )

    @property
    def knowsHalves(self) -> bool:
        """Whether the protocol provides C{IHalfCloseableProtocol}."""
        return any(rule.occasion in ("read-lost", "write-lost") for rule in self.rules)


def parse(text: str) -> Script:
    """
    Parse the text of a script.

    @raise ScriptError: the script is invalid; the message has the line.
    """
    rules = [_rule(line) for line in map(str.strip, text.splitlines()) if line]
    named = {rule.occasion for rule in rules}
    rules += [Rule(each, 0, (Step("stop", (), "stop"),)) for each in ("lost", "failed") if each not in named]
    return Script(tuple(rules))


def _rule(line: str) -> Rule:
    occasion, colon, steps = line.partition(":")
    if not colon:
        raise ScriptError(f"{line!r} has no occasion: {', '.join(OCCASIONS)}")
    name, values = _matched(occasion, OCCASIONS, line)
    threshold = int(values[0]) if values else 0
    return Rule(
        name, threshold, tuple(_step(each.strip(), line) for each in steps.split(";") if each.strip())
    )


def _step(text: str, line: str) -> Step:
    name, values = _matched(text, STEPS, line)
    return Step(name, values, text)


def _matched(text: str, forms: Mapping[str, str], line: str) -> tuple[str, tuple[Value, ...]]:
    """Return the constant words of the form that a text has, and the values of its variable words."""
    words = text.split()
    for form in forms:
        parts = form.split()
        if len(parts) == len(words) and all(
            part.isupper() or part == word for part, word in zip(parts, words, strict=True)
        ):
            try:
                return _constant(form), tuple(_taken(parts, words))
            except ValueError as error:
                raise ScriptError(f"{line!r}: {error}") from error
    raise ScriptError(f"{line!r}: {text!r} is not one of: {'; '.join(forms)}")


def _constant(form: str) -> str:
    return " ".join(word for word in form.split() if not word.isupper())


def _taken(parts: list[str], words: list[str]) -> Iterator[Value]:
    for part, word in zip(parts, words, strict=True):
        if part.isupper():
            yield _VALUES[part](word)


STEP_NAMES: Final = tuple(map(_constant, STEPS))
"""The names of all steps, without their variable words."""
