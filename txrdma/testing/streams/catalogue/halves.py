"""
Conversations with half-closed connections: an end that has written everything half-closes, and reads on.
"""

from __future__ import annotations

from txrdma.testing.streams.conversation import Conversation, Outcome, ROCE, Unlike

_ANSWERS = "read-lost: write 300kB; lose"
"""Script of a server that answers when the client has half-closed."""


_ORDERS = (
    ("made", "read-lost", "write-lost", "lost ConnectionDone"),
    ("made", "read-lost", "lost ConnectionDone"),
)


def _waits(*calls: str) -> tuple[Unlike, ...]:
    """Declare the calls of a client whose transport waits for its producer."""
    why = (
        "`loseConnection` waits until the producer is unregistered, as Twisted's documentation promises; "
        "TCP closes although a push producer that is not paused has more to write"
    )
    return (Unlike(("shared-memory", *ROCE), "client", why, calls=calls),)


CONVERSATIONS = (
    Conversation(
        "client-half-closes",
        "The client half-closes after its request, and the server answers and closes.",
        client="made: write 300kB; half\nread-lost: lose",
        server=_ANSWERS,
        isQuick=True,
        isEverywhere=True,
    ),
    Conversation(
        "server-half-closes",
        "The server writes and half-closes; the client answers when it has noticed that, and closes.",
        client="read-lost: write 300kB; lose",
        server="made: write 300kB; half\nread-lost: lose",
        isQuick=True,
    ),
    Conversation(
        "half-closes-with-nothing-written",
        "The client half-closes without having written, and receives 5 MB.",
        client="made: half\nread-lost: lose",
        server="read-lost: write 5MB; lose",
        isQuick=True,
    ),
    Conversation(
        "both-half-close",
        "Both ends write and half-close; the client closes when the server has half-closed.",
        client="made: write 300kB; half\nread-lost: lose",
        server="made: write 300kB; half\nread-lost: settle; lose",
        races="either end may come first, and who closes before its own has left is not told of that",
        also=tuple(
            Outcome(end, calls, received=300_000) for end in ("client", "server") for calls in _ORDERS
        ),
        isQuick=True,
    ),
    Conversation(
        "half-closes-to-who-knows-no-halves",
        "The client half-closes; the server's protocol cannot half-close, so the connection closes.",
        client="made: write 300kB; half\nread-lost: lose",
        server="lost: stop",
        isQuick=True,
    ),
    Conversation(
        "hears-much-after-half-closing",
        "The client half-closes while the server writes 5 MB, all of which arrives.",
        client="made: write 5; half\nread-lost: lose",
        server="made: push 5MB; await sent; lose\nread-lost:",
        isQuick=True,
    ),
    Conversation(
        "half-closes-with-a-push-producer",
        "The client half-closes while its push producer is registered and writes.",
        client="made: push 5MB; half\nread-lost: lose",
        server=_ANSWERS,
        isQuick=True,
        isEverywhere=True,
        races="how much a push producer has written when TCP's buffer is empty is chance",
        unlike=_waits("made", "write-lost", "read-lost", "lost ConnectionDone"),
    ),
    Conversation(
        "half-closes-with-a-pull-producer",
        "The client half-closes while its pull producer is registered.",
        client="made: pull 5MB; half\nread-lost: lose",
        server=_ANSWERS,
        isQuick=True,
    ),
    Conversation(
        "half-closes-with-an-idle-producer",
        "The client half-closes while an idle producer is registered, which is unregistered later.",
        client="made: write 5; hold; half; settle; release\nread-lost: lose",
        server=_ANSWERS,
        isQuick=True,
        unlike=_waits("made", "write-lost", "read-lost", "lost ConnectionDone"),
    ),
    Conversation(
        "half-closes-with-a-file",
        "The client sends a file and half-closes when it is sent.",
        client="made: file 5MB; await sent; half\nread-lost: lose",
        server=_ANSWERS,
    ),
    Conversation(
        "half-closes-to-who-has-paused",
        "The server has paused when the client half-closes; it resumes, receives everything, and answers.",
        client="made: write 300kB; half; cue written\nread-lost: lose",
        server="made: pause; await written; settle; resume\nread-lost: write 5; lose",
        isQuick=True,
    ),
    Conversation(
        "half-closes-with-more-than-fits",
        "The client writes 12 MB and half-closes, and the server reads slowly.",
        client="made: write 12MB; half\nread-lost: lose",
        server="made: slowly 0.005\nread-lost: write 5; lose",
    ),
    Conversation(
        "half-closes-twice",
        "The client calls loseWriteConnection twice.",
        client="made: write 5; half; half\nread-lost: lose",
        server=_ANSWERS,
    ),
    Conversation(
        "writes-after-half-closing",
        "What the client writes after its half-close does not arrive.",
        client="made: write 5; half; write 300kB\nread-lost: lose",
        server=_ANSWERS,
    ),
    Conversation(
        "half-closes-then-closes",
        "The client half-closes and closes at once.",
        client="made: write 300kB; half; lose\nwrite-lost:",
        server="read-lost: lose",
        races="the server may answer who has gone",
    ),
    Conversation(
        "half-closes-then-aborts",
        "The client half-closes and aborts shortly afterwards.",
        client="made: write 5; half; settle; abort\nwrite-lost:\nlost: cue aborted; stop",
        server="read-lost: await aborted; settle; write 5",
    ),
    Conversation(
        "closes-with-a-push-producer",
        "The client closes while its push producer is registered: everything that it produces arrives.",
        client="made: push 5MB; lose",
        server="lost: stop",
        isQuick=True,
        races="how much a push producer has written when TCP's buffer is empty is chance",
        unlike=_waits("made", "lost ConnectionDone"),
    ),
    Conversation(
        "closes-with-a-pull-producer",
        "The client closes while its pull producer is registered.",
        client="made: pull 5MB; lose",
        server="lost: stop",
        isQuick=True,
    ),
    Conversation(
        "closes-with-an-idle-producer",
        "The client closes while an idle producer is registered, which is unregistered later.",
        client="made: write 300kB; hold; lose; settle; release",
        server="lost: stop",
        isQuick=True,
        unlike=_waits("made", "lost ConnectionDone"),
    ),
    Conversation(
        "closes-with-a-paused-producer",
        "The client closes while a paused producer is registered, which is unregistered later.",
        client="made: hold; write 5MB; lose; await all; settle; release",
        server="received 5MB: cue all",
        isQuick=True,
    ),
    Conversation(
        "peer-closes-with-an-idle-producer",
        "The server closes while a producer of the client is registered; its stopProducing is called.",
        client="made: write 5; hold",
        server="received 5: settle; lose",
        isQuick=True,
    ),
)
