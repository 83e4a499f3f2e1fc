"""
A peer of perftest's C{ib_write_bw}, C{ib_read_lat} and C{ib_send_bw} with C{-R}, as client or server.

With C{-R}, both ends make two connections through the RDMA CM, at one port. Over the first, the control
connection, they alternate: in each exchange the client sends one message and the server answers by one. Over
the second they transfer. The exchanges, in perftest 4.5 (the order of its main functions):

  1. version, size of a page, size of a cache line, MTU; then L{Ends}, before and after the second connection
  2. three or four times L{Ends}, with the address and the key of the memory
  3. the transfers; after those of C{ib_write_bw} once more L{Ends}, and five numbers of the client's results
  4. L{Ends}, after which the client disconnects

Other versions and options of perftest have further exchanges.
"""

from __future__ import annotations

import struct
from enum import Enum
from typing import Any, Final, Union

from twisted.internet.defer import Deferred, DeferredQueue, maybeDeferred
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater
from twisted.python.failure import Failure

from txrdma.cm.connections.endpoints import (
    IBClientEndpoint,
    IBServerEndpoint,
    RDMAClientEndpoint,
    RDMAServerEndpoint,
)
from txrdma.cm.connections.protocol import RDMAProtocol
from txrdma.cm.errors import Rejected
from txrdma.cm.layouts.messages import RejectReason
from txrdma.cm.terms import Terms
from txrdma.error import InvalidRequest
from txrdma.iba.types import GID
from txrdma.kit.values import frozen
from txrdma.kit.wire import bits, Layout, wire
from txrdma.messages.memory import MemoryName
from txrdma.messages.protocol import MessageFactory

PORT: Final = 18515
"""The default port of perftest."""

MEMORY: Final = 1 << 17
"""Bytes of memory of an end; perftest writes to addresses within a page if its messages are small."""

TERMS: Final = Terms(messageBytes=1 << 16, receives=16, usesCredits=False, keepalive=None)
"""Terms of both connections."""

Client = Union[RDMAClientEndpoint, IBClientEndpoint]
"""Endpoints of clients."""

_VERSION: Final = b"6.10".ljust(16, b"\0")
_PAGE: Final = 4096
_CACHE_LINE: Final = 64
_TRIES: Final = 100
_RETRY_SECONDS: Final = 0.1
_MESSAGES: Final = 4
"""Limit of unread messages of the control connection, on which the ends alternate."""


@wire(56)
class Ends(Layout):
    """Data of an end of the data connection: perftest's C{struct pingpong_dest}, in network byte order."""

    lid: int = bits(32)
    reads: int = bits(32)
    qpn: int = bits(32)
    psn: int = bits(32)
    key: int = bits(32)
    reserved: int = bits(32)
    address: int = bits(64)
    gid: GID = bits(128)
    srqn: int = bits(32)
    gidIndex: int = bits(32)


class Test(Enum):
    """A program: its name, the exchanges of L{Ends} before transfers, and whether it exchanges results."""

    WRITE = "ib_write_bw", 3, True
    READ = "ib_read_lat", 4, False
    SEND = "ib_send_bw", 4, False

    def __init__(self, program: str, exchanges: int, hasReport: bool) -> None:
        self.program = program
        self.exchanges = exchanges
        self.hasReport = hasReport


@frozen
class Result:
    """
    The result of an end.

    @ivar seconds: duration of the transfers, of a client.
    @ivar memory: the contents of this end's memory at its end.
    @ivar read: the last bytes that a client of C{READ} has read.
    @ivar messages: lengths of the messages that a server of C{SEND} has received.
    @ivar reported: at a server of C{WRITE}, bytes of a message and number of messages, as the client counts.
    """

    seconds: float
    memory: bytes
    read: bytes
    messages: list[int]
    reported: tuple[int, int] | None


class Link(RDMAProtocol):
    """
    A connection: received messages are queued if it is the control connection, otherwise counted.

    @ivar made: fires when it is established; fails if the control connection is lost before.
    @ivar lengths: lengths of the messages received, unless this is the control connection.
    """

    def __init__(self, isControl: bool, data: Link | None = None) -> None:
        """@param data: for a server's control connection, the data connection that follows."""
        self.isControl = isControl
        self._data = data
        self.made: Deferred[None] = Deferred()
        self.lengths: list[int] = []
        self._received: DeferredQueue[bytes | Failure] = DeferredQueue(size=_MESSAGES + 1)
        self.isMade = False
        self.lost: Failure | None = None

    def connectionMade(self) -> None:
        self.isMade = True
        if not self.made.called:
            self.made.callback(None)

    def messageReceived(self, data: bytes, immediate: int | None) -> None:
        """
        Queue a message of the control connection; of the other one, store the length only.

        A peer that sends more control messages than are awaited is disconnected.
        """
        if not self.isControl:
            self.lengths.append(len(data))
        elif len(self._received.pending) < _MESSAGES:
            self._received.put(data)
        else:
            self.transport.abortConnection()

    def connectionLost(self, reason: Failure) -> None:
        self.lost = reason
        self._received.put(reason)
        if self._data is not None and not self._data.made.called:
            self._data.made.errback(reason)

    async def receive(self) -> bytes:
        """Return the next message, or raise the reason of the end."""
        message = await self._received.get()
        if isinstance(message, Failure):
            message.raiseException()
        return message


class _Peer:
    """Either end of a test, over its control connection."""

    def __init__(self, test: Test, control: Link, isClient: bool) -> None:
        self._test = test
        self._control = control
        self._isClient = isClient
        self.memory: Any = None
        self.remote = Ends()
        self._local = Ends()

    async def exchange(self, data: bytes) -> bytes:
        """Send a message and return the peer's, in the order of this end's role."""
        if self._isClient:
            self._control.transport.sendMessage(data)
            return await self._control.receive()
        received = await self._control.receive()
        self._control.transport.sendMessage(data)
        return received

    async def exchangeEnds(self) -> None:
        """Exchange L{Ends}."""
        self.remote = Ends.decode(await self.exchange(self._local.encode()))

    async def begin(self) -> None:
        """Exchange the messages before the data connection."""
        version = await self.exchange(_VERSION)
        if len(version) != len(_VERSION):
            raise InvalidRequest(f"the peer's version has {len(version)} bytes")
        for number in (_PAGE, _CACHE_LINE):
            await self.exchange(number.to_bytes(4, "big"))
        mtu = self._control.transport.agreed.mtu
        await self.exchange(b"%d\0" % mtu)
        await self.exchangeEnds()

    async def share(self, data: Link, contents: bytes) -> None:
        """Exchange the messages after the data connection, and share memory with these first bytes."""
        await self.exchangeEnds()
        self.memory = data.transport.share(MEMORY)
        self.memory.view[: len(contents)] = contents
        name = MemoryName.decode(self.memory.name)
        gid = data.transport.getHost().gid or GID(bytes(16))
        reads = data.transport.agreed.responderResources
        self._local = Ends(reads=reads, key=name.key, address=name.address, gid=gid)
        for _ in range(self._test.exchanges):
            await self.exchangeEnds()

    async def end(self, length: int, count: int, seconds: float) -> tuple[int, int] | None:
        """Exchange the messages after the transfers; return the peer's length and number of messages."""
        reported = None
        if self._test.hasReport:
            await self.exchangeEnds()
            rate = count / seconds if seconds else 0.0
            numbers = [number.to_bytes(8, "big") for number in (length, count)]
            numbers += [struct.pack(">d", each) for each in (0.0, rate * length / 2**20, rate / 1e6)]
            found = [await self.exchange(each) for each in numbers]
            reported = int.from_bytes(found[0], "big"), int.from_bytes(found[1], "big")
        await self.exchangeEnds()
        return reported


async def serve(
    endpoint: RDMAServerEndpoint | IBServerEndpoint,
    test: Test,
    contents: bytes = b"",
) -> Result:
    """
    Serve one client of a test.

    @param contents: the first bytes of the memory.
    @raise Exception: a connection was lost; the reason is a C{ConnectionLost} or the like.
    """
    data = Link(False)
    control = Link(True, data)
    links = control, data
    coming = iter(links)
    port = await endpoint.listen(MessageFactory(lambda: next(coming, None)))
    try:
        await control.made
        peer = _Peer(test, control, False)
        await peer.begin()
        await data.made
        await peer.share(data, contents)
        reported = await peer.end(0, 0, 0.0)
        return Result(0.0, bytes(peer.memory.view), b"", data.lengths, reported)
    finally:
        data.made.addErrback(lambda _: None)  # nothing waits for it any more
        for link in links:
            if link.isMade and link.lost is None:
                link.transport.loseConnection()
        await maybeDeferred(port.stopListening)


async def connect(reactor: IReactorTime, endpoint: Client, test: Test, length: int, count: int) -> Result:
    """
    Run the client of a test.

    @param length: bytes of each message, as the server expects them.
    @param count: number of messages; a server of C{SEND} must expect the same number.
    @raise Exception: a connection was refused or lost.
    """
    links: list[Link] = []
    try:
        control = await _connected(reactor, endpoint, True)
        links.append(control)
        peer = _Peer(test, control, True)
        await peer.begin()
        data = await _connected(reactor, endpoint, False)
        links.append(data)
        await peer.share(data, b"")
        name = MemoryName(address=peer.remote.address, key=peer.remote.key, length=length).encode()
        begun, read = reactor.seconds(), b""
        for number in range(count):
            read = await _transferred(test, data, name, length, number) or b""
        seconds = reactor.seconds() - begun
        reported = await peer.end(length, count, seconds)
        return Result(seconds, bytes(peer.memory.view), read, [], reported)
    finally:
        for link in reversed(links):
            if link.lost is None:
                link.transport.loseConnection()


def _transferred(test: Test, data: Link, name: bytes, length: int, number: int) -> Deferred[bytes | None]:
    """Begin a transfer: messages and writes are filled with their number."""
    transport: Any = data.transport
    filled = bytes([number % 256]) * length
    begun: Deferred[bytes | None]
    if test is Test.READ:
        begun = transport.read(name, length)
    else:
        begun = transport.write(name, filled) if test is Test.WRITE else transport.send(filled)
    return begun


async def _connected(reactor: IReactorTime, endpoint: Client, isControl: bool) -> Link:
    """Connect; a server of perftest listens for the second connection only when it has accepted the first."""
    link = Link(isControl)
    for left in reversed(range(_TRIES)):
        try:
            await endpoint.connect(MessageFactory(lambda: link))
            break
        except Rejected as error:
            if not left or error.status != RejectReason.INVALID_SERVICE_ID:
                raise
        await deferLater(reactor, _RETRY_SECONDS)
    return link
