"""
Both ends of the protocol of librdmacm's C{rping}.

The client sends the address of a source buffer; the server reads it and confirms. The client sends the
address of a sink buffer; the server writes the same bytes there and confirms; the client may compare them.
Each message is the L{name<MemoryName>} of a buffer of the client, or zeros as the server's confirmation.
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
from txrdma.kit.strings import escapedText
from txrdma.messages.memory import MemoryName, SharedMemory

PORT: Final = 7174
"""The default port of servers, in RDMA CM's TCP port space."""

LARGEST: Final = 64 << 10
"""Largest size of a ping in bytes, which bounds the memory that a server allocates for a client."""

_FIRST, _LETTERS = 65, 58
"""The characters of pings: those of ASCII from C{A} to C{z}."""


CONFIRMATION: Final = MemoryName().encode()
"""The server's message when it has read the source, and when it has written the sink."""

_NAME_BYTES: Final = len(CONFIRMATION)

TERMS: Final = Terms(messageBytes=_NAME_BYTES, receives=4, sends=4, reads=1, usesCredits=False)
"""The terms of both ends: C{rping} uses one read at a time, and no greeting."""

Report = Callable[[str], object]


def pingFor(number: int, size: int) -> bytes:
    """Return the bytes of a ping: its number, letters beginning with one that varies, and a zero byte."""
    letters = bytes(_FIRST + index for index in range(_LETTERS)) * (size // _LETTERS + 2)
    text = b"rdma-ping-%d: " % number + letters[number % _LETTERS :]
    return text[: size - 1] + b"\0"


def textOf(ping: bytes) -> str:
    """Return the text of a ping without the zero byte."""
    return escapedText(ping.partition(b"\0")[0])


class _Pinging(RDMAProtocol):
    """
    Base of both ends.

    @ivar pings: the number of completed pings.
    @ivar ended: fires with C{pings} when the connection has ended as expected; fails otherwise. Cancelling it
        aborts the connection.
    """

    def __init__(self, report: Report) -> None:
        """@param report: called with the text of each ping."""
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
        self._source: SharedMemory
        self._sink: SharedMemory

    def connectionMade(self) -> None:
        self._source, self._sink = (self.transport.share(self._size) for _ in range(2))
        self._next()

    def messageReceived(self, data: bytes, immediate: int | None) -> None:
        """Handle a confirmation: the server has read the source, or written the sink."""
        if len(data) != _NAME_BYTES:
            self._fail(f"the server sent {len(data)} bytes, not {_NAME_BYTES}")
        elif not self._isFetched:
            self._isFetched = True
            self.transport.sendMessage(self._sink.name)
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
        self.transport.sendMessage(self._source.name)

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
        self._isReading = False
        self._ping = b""

    def connectionMade(self) -> None:
        self._made(self)

    def messageReceived(self, data: bytes, immediate: int | None) -> None:
        if len(data) != _NAME_BYTES:
            self._fail(f"the client sent {len(data)} bytes, not {_NAME_BYTES}")
            return
        length = MemoryName.decode(data).length
        if self._isReading:
            self._fail("the client did not wait for the confirmation")
        elif self._ping:
            self._write(data, length)
        elif not 0 < length <= LARGEST:
            self._fail(f"the client sent a ping of {length} bytes")
        else:
            self._isReading = True
            reading = self.transport.read(data, length)
            reading.addCallbacks(self._fetched, lambda _: None)  # failures are reported by connectionLost

    def connectionLost(self, reason: Failure) -> None:
        self._finish(reason, bool(reason.check(ConnectionDone)))

    def _fetched(self, ping: bytes) -> None:
        self._isReading, self._ping = False, ping
        self._report(textOf(ping))
        self.transport.sendMessage(CONFIRMATION)

    def _write(self, sink: bytes, length: int) -> None:
        if length != len(self._ping):
            self._fail(f"the client has a source of {len(self._ping)} bytes, and a sink of {length}")
            return
        writing = self.transport.write(sink, self._ping)
        writing.addErrback(lambda _: None)  # failures are reported by connectionLost
        self._ping = b""
        self.pings += 1
        self.transport.sendMessage(CONFIRMATION)
