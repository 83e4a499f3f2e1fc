"""Conversations with TLS, or with C{twistd smc-proxy} between the ends."""

from __future__ import annotations

from collections.abc import Iterator

from txrdma.testing.streams.catalogue.deaths import vanished
from txrdma.testing.streams.conversation import Conversation, conversations, Via

_GONE = {"client-gone": vanished("server")}

_TLS = conversations(
    """
tls-client-closes (quick, everywhere)
    With TLS, the client writes 300 kB and closes: its close_notify and all data arrive.
    client made: write 300kB; lose
    server lost: stop
tls-server-closes (quick)
    With TLS, the server answers a request with 5 MB and closes.
    client made: write 300
    server received 300: write 5MB; lose
tls-both-ways
    With TLS, both write 5 MB, and the client closes when it has received everything.
    client made: write 5MB
    client received 5MB: lose
    server made: write 5MB
tls-paused-while-the-peer-exits
    With TLS, the server has paused while the client writes, closes and exits.
    client made: write 5; event made; await paused; write 300kB; lose; wait 1; stop
    server received 5: pause; event paused; await peer-ended; settle; resume
    races TLS decides how far it reads ahead
tls-killed (quick)
    With TLS, the client is killed in the middle of a request: there is no close_notify.
    client made: write 1kB; settle; kill
    server received 2kB: write 5
    unlike client-gone
tls-aborts
    With TLS, the client aborts.
    client made: write 5; await arrived; abort
    server received 5: event arrived
    server lost: stop
tls-stops
    With TLS, the client stops its reactor without closing.
    client made: write 300kB; settle; stop
    server lost: stop
tls-half-closes (quick)
    With TLS, the client answers and half-closes: what TLS has collected for a later write arrives.
    client received 5: write 300; half
    server made: write 5
    server lost: stop
tls-file
    With TLS, the server sends a file and closes.
    client made: write 300
    server received 300: file 5MB; await sent; lose
""",
    _GONE,
    Via.TLS,
)

_PROXIED = """
{name}-proxy-slow-sink{runs}
    Through {via}, 12 MB go to a server that reads slowly, and the client closes and exits.
    client made: write 12MB; lose
    server made: slowly 0.005
{name}-proxy-answer
    Through {via}, the client asks and half-closes, and the server answers and closes.
    client made: write 300kB; half
    client read-lost: lose
    server read-lost: write 5MB; lose
{name}-proxy-last-words (quick)
    Through {via}, the server answers and closes.
    client made: write 5
    server received 5: write 300kB; lose
{name}-proxy-killed
    Through {via}, the client is killed after writing half a request.
    client made: write 1kB; settle; kill
    server received 2kB: write 5
    unlike client-gone
"""


def _proxied() -> Iterator[Conversation]:
    for name, via, runs in (("near", Via.NEAR_PROXY, " (quick, everywhere)"), ("far", Via.FAR_PROXY, "")):
        text = _PROXIED.format(name=name, via=via.value, runs=runs)
        yield from conversations(text, _GONE if via is Via.FAR_PROXY else {"client-gone": ()}, via)


CONVERSATIONS = (*_TLS, *_proxied())
