"""
Both ends of the protocol of librdmacm's C{rping}.

The client sends the address of a source buffer; the server reads it and confirms. The client sends the
address of a sink buffer; the server writes the same bytes there and confirms; the client may compare them.
Each message is an L{Advert}.
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
"""The default port of servers, in RDMA CM's TCP port space."""

LARGEST: Final = 64 << 10
"""Largest size of a ping in bytes, which bounds the memory that a server allocates for a client."""

_FIRST, _LETTERS = 65, 58
"""The characters of pings: those of ASCII from C{A} to C{z}."""


@wire(16)
class Advert(Layout):
    """
    A message: a buffer of the client, or zeros as the server's confirmation.

    @ivar length: the length of the buffer in bytes.
    """

    address: int = bits(64)
    rkey: int = bits(32)
    length: int = bits(32)


ADVERT: Final = 16

TERMS: Final = Terms(messageBytes=ADVERT, receives=4, sends=4, reads=1, usesCredits=False)
"""The terms of both ends: C{rping} uses one read at a time, and no greeting."""

Report = Callable[[str], object]


def pingFor(number: int, size: int) -> bytes:
    """Return the bytes of a ping: its number, letters from a different one on in each, and a zero byte."""
    letters = bytes(_FIRST + index for index in range(_LETTERS)) * (size // _LETTERS + 2)
    text = b"rdma-ping-%d: " % number + letters[number % _LETTERS :]
    return text[: size - 1] + b"\0"


def textOf(ping: bytes) -> str:
    """Return the text of a ping without the zero byte."""
    return ping.partition(b"\0")[0].decode("ascii", "backslashreplace")


class _Pinging(RDMAProtocol):
    """
    Base of both ends.

    @ivar pings: the number of completed pings.
    @ivar ended: fires with C{pings} when the connection has ended as expected; fails otherwise. Cancelling it
        aborts the connection.
    """

    def __init__(self, report: Report) -> None:
        """
        @param report: called with the text of each ping.
        """
        self.pings = 0
        self.ended: Deferred[int] = Deferred(lambda _: self.transport.abortConnection())
        self._report = report
        self._wrong = ""

    def _fail(self, why: str) -> None:
        self._wrong = why
        self.transport.abortConnection()

    def _finish(self, reason: Failure, isExpected: bool) -> None:
        if self.ended.called:
            return
        if self._wrong:
            self.ended.errback(DeviceUnavailable(f"{self._wrong}, after {self.pings} pings"))
        elif isExpected:
            self.ended.callback(self.pings)
        else:
            why = (
                "the peer closed the connection" if reason.check(ConnectionDone) else reason.getErrorMessage()
            )
            self.ended.errback(DeviceUnavailable(f"{why}, after {self.pings} pings"))


class PingClient(_Pinging):
    """The client, whose pings the server reads and writes back."""

    def __init__(self, count: int, size: int, isVerifying: bool, report: Report) -> None:
        """
        @param count: the number of pings; 0 is unlimited.
        @param size: bytes of each, up to L{LARGEST}.
        @param isVerifying: fail if the returned bytes differ.
        """
        super().__init__(report)
        self._count, self._size, self._isVerifying = count, size, isVerifying
        self._isFetched = False
        self._ping = b""
        self._source: IMemoryRegion
        self._sink: IMemoryRegion

    def connectionMade(self) -> None:
        self._source, self._sink = (self.transport.allocateMemory(self._size) for _ in range(2))
        self._next()

    def messageReceived(self, data: bytes, immediate: int | None) -> None:
        """Handle a confirmation: the server has read the source, or written the sink."""
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
            self._fail(f"ping {self.pings} was returned with different bytes, from byte {first} on")
            return
        self.pings += 1
        self._report(textOf(ping))
        self._next()


class PingServer(_Pinging):
    """The server, which reads a client's pings and writes them back until the client closes."""

    def __init__(self, report: Report, made: Callable[[PingServer], object] = lambda server: None) -> None:
        """
        @param report: called with the text of each ping.
        @param made: called with this protocol when it is connected.
        """
        super().__init__(report)
        self._made = made
        self._memory: IMemoryRegion | None = None
        self._isReading = False
        self._held = 0

    def connectionMade(self) -> None:
        self._made(self)

    def messageReceived(self, data: bytes, immediate: int | None) -> None:
        if len(data) != ADVERT:
            self._fail(f"the client sent {len(data)} bytes, not {ADVERT}")
            return
        advert = Advert.decode(data)
        if self._isReading:
            self._fail("the client did not wait for the confirmation")
        elif self._held:
            self._write(advert)
        elif not 0 < advert.length <= LARGEST:
            self._fail(f"the client sent a ping of {advert.length} bytes")
        else:
            self._read(advert)

    def connectionLost(self, reason: Failure) -> None:
        self._finish(reason, bool(reason.check(ConnectionDone)))

    def _segment(self, length: int) -> Segment:
        memory = self._memory
        if memory is None or memory.length < length:  # the old one is freed with the connection
            memory = self._memory = self.transport.allocateMemory(LARGEST if memory else length)
        return Segment(memory.address, length, memory.lkey)

    def _read(self, advert: Advert) -> None:
        self._isReading = True
        reading = self.transport.read(self._segment(advert.length), advert.address, RKey(advert.rkey))
        reading.addCallbacks(
            lambda _: self._fetched(advert.length), lambda _: None
        )  # failures are reported by connectionLost

    def _fetched(self, length: int) -> None:
        self._isReading, self._held = False, length
        assert self._memory is not None
        self._report(textOf(bytes(self._memory.view[:length])))
        self.transport.sendMessage(Advert().encode())

    def _write(self, advert: Advert) -> None:
        if advert.length != self._held:
            self._fail(f"the client has a source of {self._held} bytes, and a sink of {advert.length}")
            return
        self.transport.write(self._segment(self._held), advert.address, RKey(advert.rkey))
        self._held = 0
        self.pings += 1
        self.transport.sendMessage(Advert().encode())
