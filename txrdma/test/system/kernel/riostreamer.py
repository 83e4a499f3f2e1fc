"""
A protocol like librdmacm's C{riostream}, either end: bytes go into memory that the peer has mapped.

Each end maps as many bytes as a transfer has, at offset 0. The client writes 16 bytes to the stream and the
server answers by as many, behind which each knows of the other's memory. Then, once for each iteration, the
client writes so many transfers into the server's memory and the server as many into the client's. Nobody is
told of them: the last byte of a turn's last transfer is the number of the turn, modulo 256, for which the
other end looks. The bytes before count up, modulo 256, from the first one of each direction.

As a program, C{python -m txrdma.test.system.kernel.riostreamer ENDPOINT BYTES,COUNT,ITERATIONS...}, it is a
client.
"""

from __future__ import annotations

import sys
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.protocol import connectionDone, Factory, Protocol
from twisted.internet.task import deferLater, react
from twisted.python.failure import Failure

from txrdma.cm.rsocket.strings import RSocketClientParser
from txrdma.kit.strings import parseString
from txrdma.test.system.kernel.rstreamer import SYNC, text


class MappedStreaming(Protocol):
    """
    One end.

    @ivar played: fires with the number of turns that were heard and verified.
    @ivar lost: the reason of the end; None before.
    """

    transport: Any

    def __init__(self, reactor: Any, isClient: bool, size: int, count: int, iterations: int) -> None:
        self.played: Deferred[int] = Deferred()
        self.lost: Failure | None = None
        self._reactor, self._isClient = reactor, isClient
        self._size, self._count, self._iterations = size, count, iterations
        self._left, self._turns, self._received = SYNC, 0, 0
        self._sentCount = 0

    def connectionMade(self) -> None:
        """Map memory; the client has the first word."""
        self.memory = self.transport.mapMemory(self._size, 0)
        self.memory.buffer[-1] = 255  # 0 is the first turn
        if self._isClient:
            self.transport.write(bytes(SYNC))

    def dataReceived(self, data: bytes) -> None:
        """Begin when all that is to be heard is here."""
        self._left -= len(data)
        if not self._left:
            if not self._isClient:
                self.transport.write(bytes(SYNC))
            Deferred.fromCoroutine(self._play()).chainDeferred(self.played)

    async def _play(self) -> int:
        await self.transport.whenMapped(0, self._size)
        for _ in range(self._iterations):
            if self._isClient:
                await self._sendAll()
                await self._receiveAll()
            else:
                await self._receiveAll()
                await self._sendAll()
        if self._isClient:
            self.transport.loseConnection()
        return self._received

    async def _receiveAll(self) -> None:
        """Look for the turn of the peer, and verify it."""
        size = self._size - 1
        while self.memory.buffer[-1] != self._turns % 256:
            if self.lost is not None:
                self.lost.raiseException()
            await deferLater(self._reactor, 0)
        received = bytes(self.memory.buffer[:size])
        if received != text(size * self._received, size):
            raise AssertionError(f"turn {self._turns} is not what it should be")
        self._turns += 1
        self._received += 1

    async def _sendAll(self) -> None:
        """Write the transfers of a turn."""
        last = text(self._sentCount, self._size - 1)
        self._sentCount += len(last)
        for _ in range(self._count - 1):
            self.transport.writeMapped(0, last + bytes([(self._turns - 1) % 256]))
        await self.transport.writeMapped(0, last + bytes([self._turns % 256]))
        self._turns += 1

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """Keep the reason."""
        self.lost = reason


async def main(reactor: Any, endpoint: str, *shapes: str) -> None:
    """Play a client once for each shape, and print how many turns it has verified."""
    (_, *args), kwargs = parseString(endpoint, "endpoint")
    client = RSocketClientParser().parseStreamClient(reactor, *args, **kwargs)
    for shape in shapes:
        size, count, iterations = map(int, shape.split(","))
        one = MappedStreaming(reactor, True, size, count, iterations)
        await client.connect(Factory.forProtocol(lambda one=one: one))  # type: ignore[misc]
        print(await one.played, flush=True)


if __name__ == "__main__":
    react(lambda reactor: Deferred.fromCoroutine(main(reactor, *sys.argv[1:])))
