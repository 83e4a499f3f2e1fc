"""
Conversations with TLS, or with C{twistd smc-proxy} between the ends.
"""

from __future__ import annotations

from collections.abc import Iterator

from txrdma.testing.streams.catalogue.deaths import vanished
from txrdma.testing.streams.conversation import Conversation, Via

_TLS = (
    Conversation(
        "tls-client-closes",
        "With TLS, the client writes 300 kB and closes: its close_notify and all data arrive.",
        client="made: write 300kB; lose",
        server="lost: stop",
        via=Via.TLS,
        isQuick=True,
        isEverywhere=True,
    ),
    Conversation(
        "tls-server-closes",
        "With TLS, the server answers a request with 5 MB and closes.",
        client="made: write 300",
        server="received 300: write 5MB; lose",
        via=Via.TLS,
        isQuick=True,
    ),
    Conversation(
        "tls-both-ways",
        "With TLS, both write 5 MB, and the client closes when it has received everything.",
        client="made: write 5MB\nreceived 5MB: lose",
        server="made: write 5MB",
        via=Via.TLS,
    ),
    Conversation(
        "tls-paused-while-the-peer-exits",
        "With TLS, the server has paused while the client writes, closes and exits.",
        client="made: write 5; cue made; await paused; write 300kB; lose; wait 1; stop",
        server="received 5: pause; cue paused; await peer-ended; settle; resume",
        via=Via.TLS,
        races="how far TLS reads ahead is its own business",
    ),
    Conversation(
        "tls-killed",
        "With TLS, the client is killed in the middle of a request: there is no close_notify.",
        client="made: write 1kB; settle; kill",
        server="received 2kB: write 5",
        via=Via.TLS,
        isQuick=True,
        unlike=vanished("server"),
    ),
    Conversation(
        "tls-aborts",
        "With TLS, the client aborts.",
        client="made: write 5; settle; abort",
        server="lost: stop",
        via=Via.TLS,
    ),
    Conversation(
        "tls-stops",
        "With TLS, the client stops its reactor without closing.",
        client="made: write 300kB; settle; stop",
        server="lost: stop",
        via=Via.TLS,
    ),
    Conversation(
        "tls-file",
        "With TLS, the server sends a file and closes.",
        client="made: write 300",
        server="received 300: file 5MB; await sent; lose",
        via=Via.TLS,
    ),
)


def _proxied() -> Iterator[Conversation]:
    for name, via in (("near", Via.NEAR_PROXY), ("far", Via.FAR_PROXY)):
        words = f"Through {via.value}, "
        yield Conversation(
            f"{name}-proxy-slow-sink",
            f"{words}12 MB go to a server that reads slowly, and the client closes and exits.",
            client="made: write 12MB; lose",
            server="made: slowly 0.005",
            via=via,
            isQuick=name == "near",
            isEverywhere=name == "near",
        )
        yield Conversation(
            f"{name}-proxy-answer",
            f"{words}the client asks and half-closes, and the server answers and closes.",
            client="made: write 300kB; half\nread-lost: lose",
            server="read-lost: write 5MB; lose",
            via=via,
        )
        yield Conversation(
            f"{name}-proxy-last-words",
            f"{words}the server answers and closes.",
            client="made: write 5",
            server="received 5: write 300kB; lose",
            via=via,
            isQuick=True,
        )
        yield Conversation(
            f"{name}-proxy-killed",
            f"{words}the client is killed after writing half a request.",
            client="made: write 1kB; settle; kill",
            server="received 2kB: write 5",
            via=via,
            unlike=vanished("server") if via is Via.FAR_PROXY else (),
        )


CONVERSATIONS = (*_TLS, *_proxied())
