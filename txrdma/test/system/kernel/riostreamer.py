"""
A protocol like librdmacm's C{riostream}, for both ends: bytes are written into memory mapped by the peer.

Each end maps the bytes of one transfer at offset 0. The client writes 16 bytes to the stream and the server
answers with 16; then each knows the other's memory. In each iteration the client writes all transfers into
the server's memory, then the server into the client's, without notifications: the last byte of the last
transfer is the iteration's number modulo 256, for which the other end polls. The other bytes count up modulo
256, from the first one of each direction.

C{python -m txrdma.test.system.kernel.riostreamer ENDPOINT BYTES,COUNT,ITERATIONS...} runs a client.
"""

from __future__ import annotations

import sys
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.protocol import connectionDone, Factory, Protocol
from twisted.internet.task import deferLater, react
from twisted.python.failure import Failure

from txrdma.cm.rsocket.strings import RSocketStringParser
from txrdma.kit.strings import parseString
from txrdma.test.system.kernel.rstreamer import SYNC, text


class MappedStreaming(Protocol):
    """
    One end.

    @ivar played: fires with the number of verified iterations.
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
        """Map memory; the client starts."""
        self.memory = self.transport.mapMemory(self._size, 0)
        self.memory.buffer[-1] = 255  # 0 is the first iteration
        if self._isClient:
            self.transport.write(bytes(SYNC))

    def dataReceived(self, data: bytes) -> None:
        """Start when the whole greeting has arrived."""
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
        """Poll for the peer's iteration, and verify it."""
        size = self._size - 1
        while self.memory.buffer[-1] != self._turns % 256:
            if self.lost is not None:
                self.lost.raiseException()
            await deferLater(self._reactor, 0)
        received = bytes(self.memory.buffer[:size])
        if received != text(size * self._received, size):
            raise AssertionError(f"iteration {self._turns} has other bytes")
        self._turns += 1
        self._received += 1

    async def _sendAll(self) -> None:
        """Write the transfers of an iteration."""
        last = text(self._sentCount, self._size - 1)
        self._sentCount += len(last)
        for _ in range(self._count - 1):
            self.transport.writeMapped(0, last + bytes([(self._turns - 1) % 256]))
        await self.transport.writeMapped(0, last + bytes([self._turns % 256]))
        self._turns += 1

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self.lost = reason


async def main(reactor: Any, endpoint: str, *shapes: str) -> None:
    """Run a client for each shape, and print the number of iterations that it verified."""
    (_, *args), kwargs = parseString(endpoint, "endpoint")
    client = RSocketStringParser().parseStreamClient(reactor, *args, **kwargs)
    for shape in shapes:
        size, count, iterations = map(int, shape.split(","))
        one = MappedStreaming(reactor, True, size, count, iterations)
        await client.connect(Factory.forProtocol(lambda one=one: one))  # type: ignore[misc]
        print(await one.played, flush=True)


if __name__ == "__main__":
    react(lambda reactor: Deferred.fromCoroutine(main(reactor, *sys.argv[1:])))
