"""
Random mutations of seeds, for runs without atheris.

atheris finds inputs that reach new code, but measuring what they reach takes most of its time. Inputs drawn
at random reach less, and many more of them run in an hour. Recent inputs are mutated again, so that changes
accumulate.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from random import Random
from typing import Final

RECENT: Final = 2000
"""Number of recent inputs that are mutated again."""

_WORDS: Final = (b"\0\0\0\0", b"\xff\xff\xff\xff", b"\0\0\0\1", b"\x7f\xff\xff\xff", b"\x80\0\0\0")


def mutate(content: bytes, other: bytes, random: Random) -> bytes:
    """Return C{content} with one random change, for example its start followed by the end of C{other}."""
    start = random.randrange(len(content) + 1)
    head, tail = content[:start], content[start:]
    match random.randrange(7):
        case 0:
            return head
        case 1:
            return head + other[random.randrange(len(other) + 1) :]
        case 2:
            return head + tail[random.randrange(1, 9) :]
        case 3:
            return head + random.randbytes(random.randrange(1, 9)) + tail
        case 4:
            return head + random.choice(_WORDS)[: len(tail)] + tail[4:]
        case 5:
            return head + random.randbytes(min(len(tail), random.randrange(1, 4))) + tail[3:]
        case _:
            return head + bytes(byte ^ 1 << random.randrange(8) for byte in tail[:1]) + tail[1:]


def mutations(seeds: Iterable[bytes], random: Random) -> Iterator[bytes]:
    """Return the seeds, then mutations of them without end."""
    originals = list(seeds)
    yield from originals
    recent = list(originals)
    while True:
        content = mutate(random.choice(random.choice((originals, recent))), random.choice(originals), random)
        yield content
        if random.random() < 0.1:
            if len(recent) >= RECENT:
                del recent[random.randrange(len(recent))]
            recent.append(content)
