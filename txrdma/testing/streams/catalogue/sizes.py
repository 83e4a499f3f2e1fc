"""Conversations of different lengths: one end or both write, from no bytes to more than buffers contain."""

from __future__ import annotations

from collections.abc import Iterator

from txrdma.testing.streams.conversation import Conversation, conversations, ROCE, Unlike

SLOWER = "RoCE in software is slower: Python processes each packet, as the kernel does for TCP"

_SIZES = {"1": "quick", "5": "quick, everywhere", "300kB": "quick", "5MB": "quick, everywhere"}
"""Sizes, and the flags of their conversations."""

_OF_SIZE = """
client-writes-{size} ({runs})
    The client writes {size}, closes, and exits after connectionLost.
    client made: write {size}; lose
    server lost: stop
server-writes-{size} ({runs})
    The server writes {size}, closes, and exits after connectionLost.
    client lost: stop
    server made: write {size}; lose
both-write-{size} ({runs})
    Both write {size}, and the client closes when it has received everything.
    client made: write {size}
    client received {size}: lose
    server made: write {size}
"""


def _ofSizes() -> Iterator[Conversation]:
    for size, runs in _SIZES.items():
        yield from conversations(_OF_SIZE.format(size=size, runs=runs))


CONVERSATIONS = (
    *conversations("""
client-closes (quick)
    The client closes as soon as it is connected; neither end writes.
    client made: lose
    server lost: stop
server-closes (quick)
    The server closes as soon as it is connected; neither end writes.
    client lost: stop
    server made: lose
"""),
    *_ofSizes(),
    *conversations(
        """
client-writes-300MB
    A producer of the client writes 300 MB; then the client closes and exits.
    client made: push 300MB; await sent; lose
    server lost: stop
    unlike slower
    seconds 120
""",
        {"slower": tuple(Unlike(ROCE, end, SLOWER, later=True) for end in ("client", "server"))},
    ),
)
