"""
Conversations of different lengths: one end or both write, from nothing to much more than any buffer holds.
"""

from __future__ import annotations

from txrdma.testing.streams.conversation import Conversation, ROCE, Unlike

SLOWER = "RoCE in software is slower: Python processes each packet, as the kernel does for TCP"

_SIZES = ("1", "5", "300kB", "5MB")
_EVERYWHERE = ("5", "5MB")

_NOTHING = (
    Conversation(
        "client-closes",
        "The client closes as soon as it is connected; neither end writes.",
        client="made: lose",
        server="lost: stop",
        isQuick=True,
    ),
    Conversation(
        "server-closes",
        "The server closes as soon as it is connected; neither end writes.",
        client="lost: stop",
        server="made: lose",
        isQuick=True,
    ),
)


def _ofSize(size: str) -> tuple[Conversation, ...]:
    isEverywhere = size in _EVERYWHERE
    return (
        Conversation(
            f"client-writes-{size}",
            f"The client writes {size}, closes, and exits after connectionLost.",
            client=f"made: write {size}; lose",
            server="lost: stop",
            isQuick=True,
            isEverywhere=isEverywhere,
        ),
        Conversation(
            f"server-writes-{size}",
            f"The server writes {size}, closes, and exits after connectionLost.",
            client="lost: stop",
            server=f"made: write {size}; lose",
            isQuick=True,
            isEverywhere=isEverywhere,
        ),
        Conversation(
            f"both-write-{size}",
            f"Both write {size}, and the client closes when it has received everything.",
            client=f"made: write {size}\nreceived {size}: lose",
            server=f"made: write {size}",
            isQuick=True,
            isEverywhere=isEverywhere,
        ),
    )


CONVERSATIONS = (
    *_NOTHING,
    *(conversation for size in _SIZES for conversation in _ofSize(size)),
    Conversation(
        "client-writes-300MB",
        "A producer of the client writes 300 MB; then the client closes and exits.",
        client="made: push 300MB; await sent; lose",
        server="lost: stop",
        seconds=120,
        unlike=(Unlike(ROCE, "client", SLOWER, later=True), Unlike(ROCE, "server", SLOWER, later=True)),
    ),
)
