"""
A program like librdmacm's C{rstream}: C{python -m txrdma.test.system.kernel.rstreamer ROLE ENDPOINT SHAPES}.

A server or a client, it plays once for each shape, C{BYTES,COUNT,ITERATIONS}: programs take long to start in
the box. The client begins with 16 bytes, and the server answers by as many; then the client sends C{COUNT}
times C{BYTES}, and the server does so, once for each iteration. All bytes count up, modulo 256, from the
first one of each direction.
"""

from __future__ import annotations

import sys
from typing import Any, Final

from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionRefusedError
from twisted.internet.protocol import connectionDone, Factory, Protocol
from twisted.internet.task import deferLater, react
from twisted.python.failure import Failure

from txrdma.cm.rsocket.strings import RSocketClientParser, RSocketServerParser
from txrdma.kit.strings import parseString

SYNC: Final = 16
_COUNTING: Final = bytes(range(256))


def text(begin: int, length: int) -> bytes:
    """The bytes of a direction from a place on."""
    first = begin % 256
    return (_COUNTING * (length // 256 + 2))[first : first + length]


class Streaming(Protocol):
    """
    One end.

    @ivar isMade: there is a connection.
    @ivar ended: fires with what is to be printed at the end.
    """

    def __init__(self, isClient: bool, size: int, count: int, iterations: int) -> None:
        self.isMade = False
        self.ended: Deferred[str] = Deferred()
        self._isClient = isClient
        self._lengths = [SYNC, *[size * count] * iterations]
        self._sent = self._received = self._round = self._left = 0
        self._isWrong = False

    def connectionMade(self) -> None:
        """Begin; the client has the first word."""
        self.isMade = True
        self._left = self._lengths[0]
        if self._isClient:
            self._sendAll()

    def dataReceived(self, data: bytes) -> None:
        """Verify, and answer when all of a round is here."""
        self._isWrong |= data != text(self._received, len(data))
        self._received += len(data)
        self._left -= len(data)
        if self._left:
            return
        if not self._isClient:
            self._sendAll()
        self._round += 1
        if self._round == len(self._lengths):
            if self._isClient:
                self.transport.loseConnection()  # type: ignore[union-attr]  # there is one
            return
        self._left = self._lengths[self._round]
        if self._isClient:
            self._sendAll()

    def _sendAll(self) -> None:
        length = self._lengths[self._round]
        self.transport.write(text(self._sent, length))  # type: ignore[union-attr]  # there is one
        self._sent += length

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """Report what came of it."""
        assert reason.type is not None
        how = "wrong" if self._isWrong else "verified"
        self.ended.callback(f"{how} {self._received} sent {self._sent} {reason.type.__name__}")


async def main(reactor: Any, role: str, endpoint: str, *shapes: str) -> None:
    """Play a role once for each shape, and print how it went."""
    # Twisted would look at all plugins of the machine for its string, which takes a minute in the box.
    (_, *args), kwargs = parseString(endpoint, "endpoint")
    streams = [Streaming(role == "client", *map(int, shape.split(","))) for shape in shapes]
    coming = iter(streams)
    factory = Factory.forProtocol(lambda: next(coming))
    if role == "server":
        await RSocketServerParser().parseStreamServer(reactor, *args, **kwargs).listen(factory)
        print("listening", flush=True)
    client = RSocketClientParser().parseStreamClient(reactor, *args, **kwargs) if role == "client" else None
    for stream in streams:
        while client is not None and not stream.isMade:
            try:
                await client.connect(Factory.forProtocol(lambda one=stream: one))  # type: ignore[misc]
            except ConnectionRefusedError:
                await deferLater(reactor, 0.1)  # their server serves one connection, and begins anew
        print(await stream.ended, flush=True)


if __name__ == "__main__":
    react(lambda reactor: Deferred.fromCoroutine(main(reactor, *sys.argv[1:])))
