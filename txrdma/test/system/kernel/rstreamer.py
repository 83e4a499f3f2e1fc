"""
A program like librdmacm's C{rstream}: C{python -m txrdma.test.system.kernel.rstreamer ROLE ENDPOINT SHAPES}.

A server or client plays once for each shape C{BYTES,COUNT,ITERATIONS} in one process, since programs start
slowly in the guest. The client begins with 16 bytes, and the server answers with 16; then in each iteration
the client sends C{COUNT} times C{BYTES}, and the server the same. All bytes count up modulo 256, from the
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

from txrdma.cm.rsocket.strings import RSocketStringParser
from txrdma.kit.strings import parseString

SYNC: Final = 16
_COUNTING: Final = bytes(range(256))


def text(begin: int, length: int) -> bytes:
    """Return the bytes of a direction from an offset."""
    first = begin % 256
    return (_COUNTING * (length // 256 + 2))[first : first + length]


class Streaming(Protocol):
    """
    One end.

    @ivar isMade: whether it is connected.
    @ivar ended: fires with the text to print at the end.
    """

    def __init__(self, isClient: bool, size: int, count: int, iterations: int) -> None:
        self.isMade = False
        self.ended: Deferred[str] = Deferred()
        self._isClient = isClient
        self._lengths = [SYNC, *[size * count] * iterations]
        self._sent = self._received = self._round = self._left = 0
        self._isWrong = False

    def connectionMade(self) -> None:
        """Start; the client sends first."""
        self.isMade = True
        self._left = self._lengths[0]
        if self._isClient:
            self._sendAll()

    def dataReceived(self, data: bytes) -> None:
        """Verify, and answer when a round is complete."""
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
        assert reason.type is not None
        how = "wrong" if self._isWrong else "verified"
        self.ended.callback(f"{how} {self._received} sent {self._sent} {reason.type.__name__}")


async def main(reactor: Any, role: str, endpoint: str, *shapes: str) -> None:
    """Play once for each shape, and print the results."""
    # from a string, Twisted would load all plugins of the machine, which takes a minute in the guest
    (_, *args), kwargs = parseString(endpoint, "endpoint")
    streams = [Streaming(role == "client", *map(int, shape.split(","))) for shape in shapes]
    coming = iter(streams)
    factory = Factory.forProtocol(lambda: next(coming))
    if role == "server":
        await RSocketStringParser().parseStreamServer(reactor, *args, **kwargs).listen(factory)
        print("listening", flush=True)
    client = RSocketStringParser().parseStreamClient(reactor, *args, **kwargs) if role == "client" else None
    for stream in streams:
        while client is not None and not stream.isMade:
            try:
                await client.connect(Factory.forProtocol(lambda one=stream: one))  # type: ignore[misc]
            except ConnectionRefusedError:
                await deferLater(reactor, 0.1)  # rstream serves one connection, then starts again
        print(await stream.ended, flush=True)


if __name__ == "__main__":
    react(lambda reactor: Deferred.fromCoroutine(main(reactor, *sys.argv[1:])))
