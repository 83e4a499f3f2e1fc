"""
The conversation of librdmacm's C{rping}: both ends, as protocols of messages.

The client tells where its source is; the server reads it, and says so. The client tells where its sink is;
the server writes there what it has read, and says so; the client may compare. Each message is an L{Advert}.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionDone
from twisted.python.failure import Failure

from txrdma.cm.connections.protocol import RDMAProtocol
from txrdma.cm.terms import Terms
from txrdma.error import DeviceUnavailable
from txrdma.iba.types import RKey
from txrdma.iba.verbs import Segment
from txrdma.interfaces import IMemoryRegion
from txrdma.kit.wire import bits, Layout, wire

PORT: Final = 7174
"""The port of servers, in RDMA CM's TCP port space, unless they are told another one."""

LARGEST: Final = 64 << 10
"""The most bytes of a ping: a server gives no more memory to a client."""

_FIRST, _LETTERS = 65, 58
"""The letters of pings: from C{A} to C{z}, with what ASCII has between."""


@wire(16)
class Advert(Layout):
    """
    A message of either end: memory of the client, or zeros, by which the server says that it is done.

    @ivar length: of that memory, in bytes.
    """

    address: int = bits(64)
    rkey: int = bits(32)
    length: int = bits(32)


ADVERT: Final = 16

TERMS: Final = Terms(messageBytes=ADVERT, receives=4, sends=4, reads=1, usesCredits=False)
"""The terms of both ends: C{rping} does one read at a time, and knows of no greeting."""

Tell = Callable[[str], object]


def pingFor(number: int, size: int) -> bytes:
    """The bytes of a ping: its number, and letters that begin elsewhere in each; the last byte is zero."""
    letters = bytes(_FIRST + index for index in range(_LETTERS)) * (size // _LETTERS + 2)
    text = b"rdma-ping-%d: " % number + letters[number % _LETTERS :]
    return text[: size - 1] + b"\0"


def textOf(ping: bytes) -> str:
    """The text of a ping, for people."""
    return ping.partition(b"\0")[0].decode("ascii", "backslashreplace")


class _Pinging(RDMAProtocol):
    """
    Either end.

    @ivar pings: those that are complete.
    @ivar ended: fires with the number of pings when the connection is over, and this end was content; to
        cancel it is to abort the connection.
    """

    def __init__(self, tell: Tell) -> None:
        """
        @param tell: called with the text of each ping.
        """
        self.pings = 0
        self.ended: Deferred[int] = Deferred(lambda _: self.transport.abortConnection())
        self._tell = tell
        self._wrong = ""

    def _fail(self, why: str) -> None:
        self._wrong = why
        self.transport.abortConnection()

    def _finish(self, reason: Failure, isContent: bool) -> None:
        if self.ended.called:
            return
        if self._wrong:
            self.ended.errback(DeviceUnavailable(f"{self._wrong}, after {self.pings} pings"))
        elif isContent:
            self.ended.callback(self.pings)
        else:
            why = (
                "the peer ended the connection" if reason.check(ConnectionDone) else reason.getErrorMessage()
            )
            self.ended.errback(DeviceUnavailable(f"{why}, after {self.pings} pings"))


class PingClient(_Pinging):
    """The client: has its pings read and written back."""

    def __init__(self, count: int, size: int, isVerifying: bool, tell: Tell) -> None:
        """
        @param count: pings until the end; 0 is without one.
        @param size: bytes of each, up to L{LARGEST}.
        @param isVerifying: give up when a ping comes back with other bytes.
        """
        super().__init__(tell)
        self._count, self._size, self._isVerifying = count, size, isVerifying
        self._isFetched = False
        self._ping = b""
        self._source: IMemoryRegion
        self._sink: IMemoryRegion

    def connectionMade(self) -> None:
        """Tell where the first ping is."""
        self._source, self._sink = (self.transport.allocateMemory(self._size) for _ in range(2))
        self._next()

    def messageReceived(self, data: bytes, immediate: int | None) -> None:
        """Go on: the server has read the source, or written the sink."""
        if len(data) != ADVERT:
            self._fail(f"the server sent {len(data)} bytes, not {ADVERT}")
        elif not self._isFetched:
            self._isFetched = True
            self._advertise(self._sink)
        else:
            self._isFetched = False
            self._returned(bytes(self._sink.view[: self._size]))

    def connectionLost(self, reason: Failure) -> None:
        self._finish(reason, bool(self._count) and self.pings == self._count)

    def _next(self) -> None:
        if self._count and self.pings == self._count:
            self.transport.loseConnection()
            return
        self._ping = pingFor(self.pings, self._size)
        self._source.view[: self._size] = self._ping
        self._sink.view[: self._size] = bytes(self._size)
        self._advertise(self._source)

    def _advertise(self, region: IMemoryRegion) -> None:
        self.transport.sendMessage(
            Advert(address=region.address, rkey=region.rkey, length=self._size).encode()
        )

    def _returned(self, ping: bytes) -> None:
        if self._isVerifying and ping != self._ping:
            first = next(index for index in range(self._size) if ping[index] != self._ping[index])
            self._fail(f"ping {self.pings} came back with other bytes, from byte {first} on")
            return
        self.pings += 1
        self._tell(textOf(ping))
        self._next()


class PingServer(_Pinging):
    """The server: reads what a client has, and writes it back, until the client ends."""

    def __init__(self, tell: Tell, made: Callable[[PingServer], object] = lambda server: None) -> None:
        """
        @param tell: called with the text of each ping.
        @param made: called with this protocol when it is connected.
        """
        super().__init__(tell)
        self._made = made
        self._memory: IMemoryRegion | None = None
        self._isReading = False
        self._held = 0

    def connectionMade(self) -> None:
        """Wait for the client's first message."""
        self._made(self)

    def messageReceived(self, data: bytes, immediate: int | None) -> None:
        """Read from the client's memory, or write into it."""
        if len(data) != ADVERT:
            self._fail(f"the client sent {len(data)} bytes, not {ADVERT}")
            return
        advert = Advert.decode(data)
        if self._isReading:
            self._fail("the client did not wait for its answer")
        elif self._held:
            self._write(advert)
        elif not 0 < advert.length <= LARGEST:
            self._fail(f"the client has a ping of {advert.length} bytes")
        else:
            self._read(advert)

    def connectionLost(self, reason: Failure) -> None:
        self._finish(reason, bool(reason.check(ConnectionDone)))

    def _segment(self, length: int) -> Segment:
        memory = self._memory
        if memory is None or memory.length < length:  # the one before is freed with the connection
            memory = self._memory = self.transport.allocateMemory(LARGEST if memory else length)
        return Segment(memory.address, length, memory.lkey)

    def _read(self, advert: Advert) -> None:
        self._isReading = True
        reading = self.transport.read(self._segment(advert.length), advert.address, RKey(advert.rkey))
        reading.addCallbacks(lambda _: self._fetched(advert.length), lambda _: None)  # else the end tells

    def _fetched(self, length: int) -> None:
        self._isReading, self._held = False, length
        assert self._memory is not None
        self._tell(textOf(bytes(self._memory.view[:length])))
        self.transport.sendMessage(Advert().encode())

    def _write(self, advert: Advert) -> None:
        if advert.length != self._held:
            self._fail(f"the client has a source of {self._held} bytes, and a sink of {advert.length}")
            return
        self.transport.write(self._segment(self._held), advert.address, RKey(advert.rkey))
        self._held = 0
        self.pings += 1
        self.transport.sendMessage(Advert().encode())
