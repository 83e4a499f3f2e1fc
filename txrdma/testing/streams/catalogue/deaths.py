"""
Conversations whose processes end: in order, by signals, or abruptly; with data written or unread.
"""

from __future__ import annotations

from collections.abc import Iterator

from txrdma.testing.streams.conversation import Conversation, Outcome, ROCE, Unlike

_LOST = ("made", "lost ConnectionLost")
_SYSTEM = (
    "the system closes the TCP connections of a process that has ended, and delivers their queued data; a "
    "queue pair ends without a message. The peer detects that, but cannot know whether data is missing"
)


def vanished(end: str, calls: tuple[str, ...] = _LOST) -> tuple[Unlike, ...]:
    """Declare the calls that a survivor may see over RoCE when its peer ends abruptly."""
    return (Unlike(ROCE, end, _SYSTEM, calls=calls, fewer=True),)


_FLUSHED = Unlike(
    (*ROCE, "shared-memory"),
    "client",
    "an end that closes and stops its reactor gets `ConnectionDone`, because all written data is delivered; "
    "Twisted's TCP drops unsent data when the reactor stops, and reports `ConnectionLost`",
    calls=("made", "lost ConnectionDone"),
)

_UNREAD = Unlike(
    ("shared-memory",),
    "client",
    "the system resets the TCP connection of a process that is killed with unread data, and closes others in "
    "order. How far a killed process has read in shared memory is unknown: received data counts as read",
    calls=("made", "lost ConnectionDone"),
)

_WAYS = {
    "stop": "stops its reactor",
    "term": "is ended by SIGTERM",
    "kill": "is ended by SIGKILL",
    "exit": "ends by os._exit",
}
_WORDLESS = ("kill", "exit")


def _endsAfterWriting() -> Iterator[Conversation]:
    for via, words in _WAYS.items():
        unlike = vanished("server") if via in _WORDLESS else ()
        yield Conversation(
            f"writes-5-then-{via}",
            f"The client writes 5 bytes and {words} one reactor iteration later.",
            client=f"made: write 5; turn; {via}",
            server="lost: stop",
            isQuick=True,
            unlike=unlike,
        )
        yield Conversation(
            f"writes-300kB-then-{via}",
            f"The client writes 300 kB and {words} when the data is sent.",
            client=f"made: write 300kB; settle; {via}",
            server="lost: stop",
            isQuick=True,
            isEverywhere=True,
            unlike=unlike,
        )
        yield Conversation(
            f"writes-5MB-then-{via}",
            f"The client writes 5 MB and {words} one iteration later: what the system has accepted arrives.",
            client=f"made: write 5MB; turn; {via}",
            server="lost: stop",
            races="how much the system takes in one turn is its own business",
            unlike=unlike,
        )
        yield Conversation(
            f"writes-and-in-this-turn-{via}",
            f"The client writes 300 kB and {words} in the same reactor iteration.",
            client=f"made: write 300kB; {via}",
            server="lost: stop",
            races="how much leaves before the end is chance",
            unlike=unlike,
        )
        yield Conversation(
            f"unread-then-{via}",
            f"The server has paused when the client writes 300 kB and {words}; then it reads.",
            client=f"made: write 300kB; settle; {via}",
            server="made: pause; await peer-ended; settle; resume",
            isQuick=True,
            unlike=unlike,
        )


CONVERSATIONS = (
    *_endsAfterWriting(),
    Conversation(
        "stops-inside-dataReceived",
        "The client stops its reactor inside dataReceived after reading everything.",
        client="received 5: stop",
        server="made: write 5",
        isQuick=True,
        isEverywhere=True,
    ),
    Conversation(
        "answers-and-stops-inside-dataReceived",
        "The client answers, closes and stops its reactor inside dataReceived.",
        client="received 5: write 5; lose; stop",
        server="made: write 5",
        unlike=(_FLUSHED,),
        races="whether the answer leaves before the reactor has stopped is chance",
        isQuick=True,
    ),
    Conversation(
        "stops-while-more-comes",
        "The client stops its reactor inside dataReceived while the server's producer writes.",
        client="received 1kB: stop",
        server="made: push 20MB",
        races="what is unread when the process ends has its kernel send a reset",
        also=(Outcome("server", ("made", "stop-producing", "lost ConnectionLost")),),
        isQuick=True,
    ),
    Conversation(
        "closes-and-stops",
        "The client writes, closes, and stops its reactor without waiting for connectionLost.",
        client="made: write 300kB; lose; stop",
        server="lost: stop",
        unlike=(_FLUSHED,),
        races="how much leaves before the end is chance",
        isQuick=True,
    ),
    Conversation(
        "idle-then-kill",
        "An idle client is ended by SIGKILL.",
        client="made: settle; kill",
        server="lost: stop",
        isQuick=True,
        isEverywhere=True,
        unlike=vanished("server"),
    ),
    Conversation(
        "idle-server-then-kill",
        "An idle server is ended by SIGKILL.",
        client="lost: stop",
        server="made: settle; kill",
        isQuick=True,
        unlike=vanished("client"),
    ),
    Conversation(
        "idle-then-term",
        "An idle client is ended by SIGTERM.",
        client="made: settle; term",
        server="lost: stop",
        isQuick=True,
    ),
    Conversation(
        "idle-server-then-term",
        "A server is ended by SIGTERM when it has answered, while its client waits for more.",
        client="made: write 300",
        server="received 300: write 300kB; settle; term",
        isQuick=True,
    ),
    Conversation(
        "many-connections-then-stop",
        "The client writes on twenty concurrent connections and stops its reactor.",
        client="made: again until 20; write 300kB; settle; wait 1; stop",
        server="lost: stop after 20",
    ),
    Conversation(
        "many-connections-then-kill",
        "The client writes on twenty concurrent connections and is killed.",
        client="made: again until 20; write 300kB; settle; wait 1; kill",
        server="lost: stop after 20",
        unlike=vanished("server"),
    ),
    Conversation(
        "half-a-request-then-kill",
        "The client has written half a request when it is killed.",
        client="made: write 1kB; settle; kill",
        server="received 2kB: write 5",
        isQuick=True,
        unlike=vanished("server"),
    ),
    Conversation(
        "half-a-request-then-close",
        "The client has written half a request when it closes.",
        client="made: write 1kB; lose",
        server="received 2kB: write 5",
    ),
    Conversation(
        "reader-is-killed",
        "The server is killed while the client's producer writes.",
        client="made: push 12MB",
        server="received 300kB: kill",
        races="what is unread when a process ends has its kernel send a reset",
        isQuick=True,
    ),
    Conversation(
        "reader-is-killed-with-everything-read",
        "The server is killed when it has read the request; the client waits for an answer.",
        client="made: write 300kB",
        server="received 300kB: settle; kill",
        isQuick=True,
        unlike=vanished("client"),
    ),
    Conversation(
        "paused-reader-is-killed",
        "The server pauses and is killed with all data unread.",
        client="made: write 300kB; cue written",
        server="made: pause; await written; settle; kill",
        isQuick=True,
        unlike=(_UNREAD,),
    ),
    Conversation(
        "killed-after-half-closing",
        "The client half-closes and is killed before the answer.",
        client="made: write 5; half; settle; kill\nwrite-lost:",
        server="read-lost: await peer-ended; settle; write 5; settle; write 5",
        races="what is written to who has gone comes back as a reset",
    ),
    Conversation(
        "forks",
        "The client forks; the child keeps the descriptors for two seconds; the conversation continues.",
        client="made: fork 2; write 300kB\nreceived 300kB: lose",
        server="received 300kB: write 300kB",
        isQuick=True,
        isEverywhere=True,
    ),
    Conversation(
        "forks-and-closes",
        "The client writes, forks and closes; the child outlives it.",
        client="made: write 300kB; fork 2; lose",
        server="lost: stop",
        isQuick=True,
    ),
    Conversation(
        "forks-and-is-killed",
        "The client writes, forks and is killed; the child outlives it and keeps the connection open.",
        client="made: write 300kB; settle; fork 2; kill",
        server="lost: stop",
        seconds=2,
        unlike=vanished("server"),
    ),
    Conversation(
        "forks-a-child-that-ends-at-once",
        "The server forks, the child exits at once, and the conversation continues.",
        client="made: write 300kB; settle; write 300kB",
        server="received 300kB: fork 0\nreceived 600kB: write 300kB; lose",
        isQuick=True,
    ),
)
