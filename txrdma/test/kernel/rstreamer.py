"""
A program like librdmacm's C{rstream}: C{python -m txrdma.test.kernel.rstreamer server|client ENDPOINT BYTES
COUNT ITERATIONS}.

The client begins with 16 bytes, and the server answers by as many; then the client sends C{COUNT} times
C{BYTES}, and the server does so, once for each iteration. All bytes count up, modulo 256, from the first one
of each direction.
"""

from __future__ import annotations

import sys
from typing import Any, Final

from twisted.internet.defer import Deferred
from twisted.internet.protocol import connectionDone, Factory, Protocol
from twisted.internet.task import react
from twisted.python.failure import Failure

from txrdma.cm.rsocket.strings import RSocketClientParser, RSocketServerParser
from txrdma.strings import parseString

SYNC: Final = 16
_COUNTING: Final = bytes(range(256))


def text(begin: int, length: int) -> bytes:
    """The bytes of a direction from a place on."""
    first = begin % 256
    return (_COUNTING * (length // 256 + 2))[first : first + length]


class Streaming(Protocol):
    """
    One end.

    @ivar ended: fires with what is to be said at the end.
    """

    def __init__(self, isClient: bool, size: int, iterations: int) -> None:
        self.ended: Deferred[str] = Deferred()
        self._isClient = isClient
        self._lengths = [SYNC, *[size] * iterations]
        self._sent = self._heard = self._round = self._left = 0
        self._isWrong = False

    def connectionMade(self) -> None:
        """Begin; the client has the first word."""
        self._left = self._lengths[0]
        if self._isClient:
            self._say()

    def dataReceived(self, data: bytes) -> None:
        """Verify, and answer when all of a round is here."""
        self._isWrong |= data != text(self._heard, len(data))
        self._heard += len(data)
        self._left -= len(data)
        if self._left:
            return
        if not self._isClient:
            self._say()
        self._round += 1
        if self._round == len(self._lengths):
            if self._isClient:
                self.transport.loseConnection()  # type: ignore[union-attr]  # there is one
            return
        self._left = self._lengths[self._round]
        if self._isClient:
            self._say()

    def _say(self) -> None:
        length = self._lengths[self._round]
        self.transport.write(text(self._sent, length))  # type: ignore[union-attr]  # there is one
        self._sent += length

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """Say what came of it."""
        assert reason.type is not None
        how = "wrong" if self._isWrong else "verified"
        self.ended.callback(f"{how} {self._heard} sent {self._sent} {reason.type.__name__}")


async def main(reactor: Any, role: str, endpoint: str, size: str, count: str, iterations: str) -> None:
    """Play a role once, and say how it went."""
    streaming = Streaming(role == "client", int(size) * int(count), int(iterations))
    factory = Factory.forProtocol(lambda: streaming)
    # Twisted would look at all plugins of the machine for its string, which takes a minute in the box.
    (_, *args), kwargs = parseString(endpoint, "endpoint")
    if role == "client":
        await RSocketClientParser().parseStreamClient(reactor, *args, **kwargs).connect(factory)
    else:
        await RSocketServerParser().parseStreamServer(reactor, *args, **kwargs).listen(factory)
        print("listening", flush=True)
    print(await streaming.ended, flush=True)


if __name__ == "__main__":
    react(lambda reactor: Deferred.fromCoroutine(main(reactor, *sys.argv[1:])))
