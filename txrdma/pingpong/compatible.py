"""
Protocol of C{ibv_rc_pingpong} and C{ibv_ud_pingpong}, which are examples of rdma-core.

Over TCP each side sends one line of hexadecimal numbers that ends with a zero byte: LID, queue pair number,
first PSN, GID. The client sends its line first, receives the server's, and sends C{done}. Then one message is
sent back and forth: each side sends the next when its last one has completed and an answer has arrived. Both
get size, MTU and number of messages from their command lines. Each side sends from and receives into one
buffer, so that received data is sent back; it is filled with 0x7b; with C{-c} each page begins with a zero.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime, IStreamClientEndpoint
from twisted.internet.protocol import connectionDone, Factory, Protocol
from twisted.internet.task import deferLater
from twisted.python.failure import Failure

from txrdma.error import InvalidRequest, RDMAError, WireError
from txrdma.iba.types import GID, LID, MTU, QPN
from txrdma.iba.verbs import Completion, Operation, QPKind, SendRequest
from txrdma.pingpong.activity import Activity
from txrdma.pingpong.conversation import ANSWER_SECONDS, ConversationLost
from txrdma.pingpong.link import EndAddress, MeasuredLink, QKEY, TestSide
from txrdma.pingpong.measurement import Measurement
from txrdma.pingpong.plan import LinkSettings, Test, Transfer

PORT: Final = 18515
_DONE: Final = b"done\0"
_LINE: Final = re.compile(rb"([0-9a-f]{4}):([0-9a-f]{6}):([0-9a-f]{6}):([0-9a-f]{32})\0", re.IGNORECASE)
LINE_BYTES: Final = 52
_FILLING: Final = 0x7B
_PAGE: Final = 4096
_LINGER_SECONDS: Final = 0.5


def encodeEndAddress(here: EndAddress) -> bytes:
    """Return the line with the local addresses."""
    return f"{here.lid:04x}:{here.qpn:06x}:{here.psn:06x}:{here.gid.toBytes().hex()}\0".encode()


def decodeEndAddress(line: bytes) -> EndAddress:
    """Decode the peer's line; raise L{WireError} if it is invalid."""
    found = _LINE.fullmatch(line)
    if found is None:
        shown = line[:60].decode("ascii", "replace").rstrip("\0")
        raise WireError("address line", 0, f"the other end sent {shown!r}")
    lid, qpn, psn = (int(part, 16) for part in found.groups()[:3])
    gid = GID(bytes.fromhex(found[4].decode()))
    return EndAddress(gid, LID(lid), QPN(qpn), psn, MTU.MTU_4096.bytes)


class _Exchange(Protocol):
    """Protocol of the TCP connection that exchanges addresses; C{opened} fires when it is connected."""

    def __init__(self, reactor: IReactorTime) -> None:
        self.opened: Deferred[_Exchange] = Deferred()
        self._reactor = reactor
        self._held = b""
        self._needed = 0
        self._waiting: Deferred[bytes] | None = None
        self._isLost = False

    def connectionMade(self) -> None:
        self.opened.callback(self)

    def send(self, line: bytes) -> None:
        """Send a line unchanged."""
        assert self.transport is not None  # it was opened
        self.transport.write(line)

    def receive(self, length: int) -> Deferred[bytes]:
        """Wait for the next C{length} bytes."""
        waiting: Deferred[bytes] = Deferred(self._forget)
        self._waiting, self._needed = waiting, length
        waiting.addTimeout(ANSWER_SECONDS, self._reactor, self._late)
        self._poll()
        return waiting

    def leave(self) -> None:
        """Close the TCP connection, as both sides do before the first message."""
        if self.transport is not None:
            self.transport.loseConnection()

    def dataReceived(self, data: bytes) -> None:
        """Buffer received data, and close the connection if it is longer than any valid exchange."""
        self._held += data
        if len(self._held) > LINE_BYTES + len(_DONE):
            self.leave()  # no valid exchange is so long
        self._poll()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self._isLost = True
        self._poll()

    def _poll(self) -> None:
        waiting = self._waiting
        if waiting is None:
            return
        if len(self._held) >= self._needed:
            self._waiting = None
            taken, self._held = self._held[: self._needed], self._held[self._needed :]
            waiting.callback(taken)
        elif self._isLost:
            self._waiting = None
            waiting.errback(ConversationLost("the other end has gone"))

    def _forget(self, waiting: Deferred[bytes]) -> None:
        self._waiting = None

    def _late(self, result: object, seconds: float) -> Failure:
        return Failure(ConversationLost(f"the other end has sent nothing for {seconds:g} seconds"))


class Game(Activity):
    """Role that sends one message back and forth."""

    def __init__(self, link: MeasuredLink, test: Test, isFirst: bool) -> None:
        """@param isFirst: whether this end sends the first message, as clients do."""
        super().__init__(link, test)
        self._isFirst = isFirst
        self._begin = link.layout.slotAt(0)
        self._right = _filling(test.size, zeros=isFirst and test.check)
        self._alternative = _filling(test.size, zeros=True)
        link.memory.view[self._begin : self._begin + test.size] = self._right
        self._request = SendRequest(0, Operation.SEND, (link.segment(self._begin, test.size),))
        if test.transfer is Transfer.UD:
            assert link.peer is not None  # it is connected
            self._request.address = link.addressHandle
            self._request.remoteQPN, self._request.remoteQKey = link.peer.qpn, QKEY
        self._isSending = False
        self._isWaiting = True
        self._posted = self._first = -1

    def begin(self) -> None:
        self.watch()
        if self._isFirst:
            self._send()

    def end(self) -> None:
        """Finish at once, as the protocol cannot notify the peer."""
        self.finish()

    def arrived(self, batch: Sequence[Completion]) -> None:
        """Record the peer's message, and answer it when the last local message has completed."""
        now = self.link.now()
        for completion in batch:
            self.received += 1
            self._isWaiting = False
            if self._posted >= 0:
                self.measurement.samples.add((now - self._posted) // 2)
                self.measurement.messages += 1
                self.measurement.nanoseconds = now - self._first
            length = completion.length - self.link.layout.headroom
            if length != self.test.size or (self.test.check and not self._isRight()):
                self.measurement.wrong += 1
        self._proceed()

    def sendsCompleted(self, batch: Sequence[Completion]) -> None:
        """Record that the local message has completed, and send the next one if the peer has answered."""
        self.messages += len(batch)
        self._isSending = False
        self._proceed()

    def _proceed(self) -> None:
        if self._isSending or self._isWaiting or self.isFinished:
            return
        if self.messages < self.test.iterations:
            self._send()
        elif self.received >= self.test.iterations:
            self.finish()

    def _send(self) -> None:
        self._isSending = True
        self._isWaiting = self.received < self.test.iterations
        self._posted = self.link.now()
        if self._first < 0:
            self._first = self._posted
        self.link.queuePair.postSend((self._request,))

    def _isRight(self) -> bool:
        found = bytes(self.link.memory.view[self._begin : self._begin + self.test.size])
        if self.received == 1 and not self._isFirst and found == self._alternative:
            self._right = self._alternative  # the peer was started with -c
        return found == self._right


def _filling(size: int, zeros: bool) -> bytes:
    filling = bytearray((_FILLING,)) * size
    if zeros:
        filling[::_PAGE] = bytes(len(range(0, size, _PAGE)))
    return bytes(filling)


async def playFirst(
    endpoint: IStreamClientEndpoint,
    side: TestSide,
    test: Test,
    mtu: int,
    playing: Callable[[Game], None] = lambda game: None,
) -> Measurement:
    """
    Run as the program does with a host argument: connect, and send first.

    @param playing: called with the game before it begins.
    @raise RDMAError: the exchange has failed.
    """
    exchange = await endpoint.connect(Factory.forProtocol(lambda: _Exchange(side.reactor)))
    assert isinstance(exchange, _Exchange)
    return await _play(exchange, side, test, mtu, playing, isFirst=True)


class OneGame(Factory):
    """
    Factory that runs as the program does without a host argument: wait for a client, and answer.

    @ivar done: fires with the measurement or failure of the first connection.
    """

    noisy = False

    def __init__(
        self, side: TestSide, test: Test, mtu: int, playing: Callable[[Game], None] = lambda game: None
    ) -> None:
        self.done: Deferred[Measurement] = Deferred()
        self._side = side
        self._test = test
        self._mtu = mtu
        self._playing = playing
        self._isTaken = False

    def buildProtocol(self, addr: object) -> Protocol | None:
        if self._isTaken:
            return None
        self._isTaken = True
        exchange = _Exchange(self._side.reactor)
        exchange.opened.addCallback(self._opened)
        return exchange

    def _opened(self, exchange: _Exchange) -> None:
        Deferred.fromCoroutine(
            _play(exchange, self._side, self._test, self._mtu, self._playing, isFirst=False)
        ).addBoth(self.done.callback)


async def _play(
    exchange: _Exchange, side: TestSide, test: Test, mtu: int, playing: Callable[[Game], None], isFirst: bool
) -> Measurement:
    """Exchange addresses, run the game, and release its resources."""
    assert exchange.transport is not None  # it was opened
    device = side.open(exchange.transport.getHost())
    link: MeasuredLink | None = None
    try:
        kind = test.transfer.kind
        link = MeasuredLink(side, device, LinkSettings(kind, test.size, mtu=mtu))
        if kind is QPKind.UD and test.size > link.mtu:
            raise InvalidRequest(f"a datagram has at most {link.mtu} bytes here, not {test.size}")
        mine = encodeEndAddress(link.here)
        if isFirst:
            exchange.send(mine)
        _connect(link, await exchange.receive(LINE_BYTES))
        game = Game(link, test, isFirst)
        playing(game)
        if isFirst:
            exchange.send(_DONE)
        else:
            exchange.send(mine)
            await exchange.receive(len(_DONE))
        exchange.leave()
        game.start()
        measurement = await game.done
        await deferLater(side.reactor, _LINGER_SECONDS)  # the peer may need a retransmission
        return measurement
    finally:
        exchange.leave()
        if link is not None:
            link.close()
        side.close(device)


def _connect(link: MeasuredLink, line: bytes) -> None:
    there = decodeEndAddress(line)
    if there.gid.ip is None and there.lid == 0:
        raise RDMAError("the other end has sent no GID: start it with -g and the index of one")
    link.connect(there)
