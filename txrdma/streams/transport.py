"""
The transport of all streams, which provides Twisted's TCP interfaces to protocols and producers.

The connection (L{End}) sends and receives the bytes and decides when it, or one of its directions, ends:
L{txrdma.streams.connection} for streams over message connections, L{txrdma.smc.stream.stream} for C{smc:}. It
reports events to its transport, which calls the application and handles its exceptions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache, partial
from typing import Any, cast, Final, Generic, Protocol, TypeVar

from zope.interface import implementer

from twisted.internet.abstract import FileDescriptor
from twisted.internet.address import IPv4Address, IPv6Address
from twisted.internet.interfaces import (
    IConsumer,
    IHalfCloseableProtocol,
    ILoggingContext,
    IProtocol,
    IPullProducer,
    IPushProducer,
    ITransport,
)
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.python.log import ILogContext

from txrdma.messages.address import MessageAddress

Address = IPv4Address | IPv6Address
"""A TCP address."""


def streamAddress(address: MessageAddress) -> Address:
    """Return the address of an end of a message connection as a TCP address."""
    if ":" in address.host:
        return IPv6Address("TCP", address.host, address.port, 0, address.scopeID)
    return IPv4Address("TCP", address.host, address.port)


_log = Logger()

ONE_SEND: Final = FileDescriptor.SEND_LIMIT
"""Maximum number of bytes that Twisted's TCP transports pass to the kernel at once."""

_PULLS: Final = 16
"""Maximum number of calls of a pull producer before its bytes are posted."""

_TLS_METHODS: Final = ("write", "writeSequence", "loseConnection", "registerProducer", "unregisterProducer")


class Bytes(Protocol):
    """
    The bytes of a stream, with the flags that its connection and its transport share.

    @ivar context: the logging context of the protocol.
    @ivar isOpen: whether the application may write.
    @ivar isEnding: whether to close the write side when all bytes are posted.
    @ivar discardsInput: whether received bytes are discarded.
    @ivar isPaused: whether delivery of received bytes is paused.
    @ivar hasProducer: whether a producer is registered that may write more.
    @ivar backlog: number of bytes that are not posted yet.
    """

    context: dict[Any, Any]
    isOpen: bool
    isEnding: bool
    discardsInput: bool
    isPaused: bool
    hasProducer: bool
    protocol: Any

    @property
    def backlog(self) -> int: ...

    def write(self, data: bytes) -> int:
        """Queue bytes; return the length of the backlog."""


class End(Protocol):
    """The connection of a stream, as its transport uses it."""

    @property
    def connected(self) -> bool: ...

    @property
    def disconnected(self) -> bool: ...

    @property
    def host(self) -> Address: ...

    @property
    def peer(self) -> Address: ...

    def close(self) -> None:
        """Close the connection when all written bytes are posted and a producer has no more to write."""

    def closeWriting(self) -> None:
        """Close the write side when all written bytes are posted and a producer has no more to write."""

    def abort(self) -> None:
        """Close the connection at once, and drop bytes that are not posted."""

    def resume(self) -> None:
        """Deliver received bytes to the protocol again, from a later iteration of the reactor on."""

    def blame(self, where: str) -> None:
        """Close the connection because the named method of the application raised."""

    @property
    def written(self) -> int:
        """Number of bytes that the application has written."""

    def afterDelayedCalls(self, call: Callable[[], None]) -> None:
        """Make a call in the next iteration of the reactor, after the delayed calls that are due."""


EndT = TypeVar("EndT", bound=End)


def logName(protocol: IProtocol) -> str:
    """Return the first part of a log prefix, in the format of Twisted's TCP transports."""
    return protocol.logPrefix() if ILoggingContext.providedBy(protocol) else type(protocol).__name__


@lru_cache(16)
def _logContext(system: str) -> dict[Any, Any]:
    """
    Return the logging context of protocols with this log prefix, which Twisted copies and never modifies.

    All clients of one protocol class share it, which saves 350 bytes for each idle connection.
    """
    return {ILogContext: {"isError": 0, "system": system}}


def _mustBeBytes(data: object) -> None:
    if not isinstance(data, bytes):
        raise TypeError("Data must be bytes")  # the message of twisted.internet.abstract


@implementer(IConsumer, IPushProducer, ILoggingContext)
class StreamTransport(Generic[EndT]):
    """
    The transport of a stream: Twisted's interfaces to an L{End}.

    Written bytes are queued until the connection flushes them. (C{__dict__} is for TLS, which replaces
    methods; it is allocated on first use.)

    @ivar stream: the connection.
    """

    __slots__ = (
        *("stream", "_flow", "producer", "streamingProducer", "producerPaused"),
        *("__dict__", "__weakref__"),
    )

    bufferSize = 65536
    TLS = False

    def __init__(self, stream: EndT, flow: Bytes, protocol: IProtocol, system: str) -> None:
        """@param system: the log prefix of the protocol."""
        self.stream = stream
        self._flow = flow
        self.producer: IPushProducer | IPullProducer | None = None
        self.producerPaused = self.streamingProducer = False
        flow.protocol = protocol
        flow.context = _logContext(system)

    @property
    def protocol(self) -> IProtocol | None:
        """The protocol of the stream; TLS replaces it by its own."""
        protocol: IProtocol | None = self._flow.protocol
        return protocol

    @protocol.setter
    def protocol(self, protocol: IProtocol | None) -> None:
        self._flow.protocol = protocol

    @property
    def connected(self) -> bool:
        """Whether C{connectionLost} has not been called."""
        return self.stream.connected

    @property
    def disconnected(self) -> bool:
        """Whether C{connectionLost} has been called."""
        return self.stream.disconnected

    @property
    def disconnecting(self) -> bool:
        """Whether the connection is being closed, and received bytes are discarded."""
        return self._flow.discardsInput

    # ITransport

    def write(self, data: bytes) -> None:
        if data.__class__ is not bytes:
            _mustBeBytes(data)
        flow = self._flow
        if data and (not flow.isOpen or flow.write(data) > self.bufferSize) and self.producer is not None:
            self._pauseProducer()  # also after the end, when nothing else pauses it

    def writeSequence(self, iovec: Iterable[bytes]) -> None:
        chunks = list(iovec)
        if {*map(type, chunks)} - {bytes}:  # saves 30 calls per HTTP request
            for chunk in chunks:
                _mustBeBytes(chunk)
        StreamTransport.write(self, b"".join(chunks))  # C{self.write} may be that of TLS

    def loseConnection(self) -> None:
        """Close the connection when all written bytes are sent and a producer has no more to write."""
        self.stream.close()

    def loseWriteConnection(self) -> None:
        """Close the write side when all written bytes are sent and a producer has no more to write."""
        if not self._flow.isOpen:
            return
        if ITransport.providedBy(self.protocol):  # TLS, which writes in a delayed call what it has collected
            self.stream.afterDelayedCalls(self._closeWriting)
        else:
            self.stream.closeWriting()

    def _closeWriting(self) -> None:
        if self._flow.isOpen:
            self.stream.closeWriting()

    def abortConnection(self) -> None:
        """Close the connection at once, and drop bytes that are not posted."""
        self.stream.abort()

    def getHost(self) -> Address:
        return self.stream.host

    def getPeer(self) -> Address:
        return self.stream.peer

    @property
    def client(self) -> tuple[str, int] | tuple[str, int, int, str | int]:
        """The socket address of the peer, an attribute that Twisted's TCP server transports have."""
        peer = self.stream.peer
        if isinstance(peer, IPv6Address):
            return peer.host, peer.port, peer.flowInfo, peer.scopeID
        return peer.host, peer.port

    @property
    def hostname(self) -> str:
        """Host of the peer, an attribute like C{client}."""
        return self.stream.peer.host

    # IConsumer

    def registerProducer(  # type: ignore[override]  # there are no other producers
        self, producer: IPushProducer | IPullProducer, streaming: bool
    ) -> None:
        if self.producer is not None:
            raise RuntimeError(
                f"Cannot register producer {producer}, because producer {self.producer} "
                "was never unregistered."
            )
        if self.disconnected:
            producer.stopProducing()
        else:
            self.producer = producer
            self._flow.hasProducer = True
            self.streamingProducer = streaming
            self.producerPaused = False
            if not streaming:
                producer.resumeProducing()

    def unregisterProducer(self) -> None:
        self.producer = None
        self._flow.hasProducer = False
        if self.connected and self._flow.isEnding:
            self.stream.closeWriting()

    def stopConsuming(self) -> None:
        """Unregister the producer, and close the connection."""
        self.unregisterProducer()
        self.loseConnection()

    def _pauseProducer(self) -> None:
        if self.streamingProducer:
            self.producerPaused = True
            cast(IPushProducer, self.producer).pauseProducing()

    # IPushProducer

    def pauseProducing(self) -> None:
        self._flow.isPaused = True

    def resumeProducing(self) -> None:
        """Resume C{dataReceived} in a later reactor iteration."""
        self.stream.resume()

    def stopProducing(self) -> None:
        """Close the connection, because the consumer of its data has stopped."""
        self.loseConnection()

    startReading = resumeProducing
    stopReading = pauseProducing

    # ITLSTransport; subclasses declare the interface

    def startTLS(self, contextFactory: object, normal: bool = True) -> None:
        from twisted.internet import _newtls

        producer, streaming = self.producer, self.streamingProducer
        if producer is not None:
            self.unregisterProducer()
        _newtls.startTLS(self, contextFactory, normal, type(self))
        for name in _TLS_METHODS:
            self.__dict__[name] = getattr(self.protocol, name)
        if producer is not None:
            self.registerProducer(producer, streaming)

    @property
    def _tlsClientDefault(self) -> bool:
        """Whether this end has opened the connection."""
        raise NotImplementedError

    # Events of the connection

    def begun(self) -> None:
        """Connect the protocol, which may write from then on."""
        try:
            self._flow.protocol.makeConnection(self)
        except BaseException:
            if self._tlsClientDefault:
                self.stream.blame("makeConnection")
            else:  # Twisted's TCP ports log the error, and leave the connection open
                _log.failure("Unhandled error in makeConnection")

    def flushed(self) -> None:
        """Resume the producer, since all written bytes are posted."""
        producer = self.producer
        try:
            if producer is None:
                pass
            elif not self.streamingProducer:
                self._pull()
            elif self.producerPaused:
                self.producerPaused = False
                producer.resumeProducing()
            elif self._flow.isEnding:
                self.stream.afterDelayedCalls(partial(self._closeIfIdle, self.stream.written))
        except BaseException:
            self.stream.blame("resumeProducing")

    def _closeIfIdle(self, written: int) -> None:
        """
        Close without waiting for a push producer that has written nothing for an iteration of the reactor.

        TCP does not wait for any push producer that is not paused. Programs rely on it: C{HTTPChannel} and
        C{portforward} close while a producer is registered that is never unregistered.

        @param written: number of bytes that were written when all of them were posted.
        """
        flow = self._flow
        if flow.hasProducer and flow.isEnding and not self.producerPaused and self.stream.written == written:
            flow.hasProducer = False
            self.stream.closeWriting()

    def _pull(self) -> None:
        """Call a pull producer until it writes nothing, or the buffer is full."""
        flow = self._flow
        for _ in range(_PULLS):
            before = flow.backlog
            cast(IPullProducer, self.producer).resumeProducing()
            if not before < flow.backlog < self.bufferSize or self.producer is None:
                break

    def writeEnded(self) -> None:
        """Call C{writeConnectionLost} of an C{IHalfCloseableProtocol}."""
        self._halfClosed("writeConnectionLost")

    @property
    def knowsHalves(self) -> bool:
        """Whether the protocol is an C{IHalfCloseableProtocol}."""
        return IHalfCloseableProtocol(self._flow.protocol, None) is not None

    def readEnded(self) -> None:
        """Call C{readConnectionLost} of an C{IHalfCloseableProtocol}."""
        self._halfClosed("readConnectionLost")

    def _halfClosed(self, method: str) -> None:
        half = IHalfCloseableProtocol(self.protocol, None)
        if half is not None:
            try:
                getattr(half, method)()
            except BaseException:
                self.stream.blame(method)

    def ended(self, reason: Failure | None) -> None:
        """Call C{connectionLost} with the reason; None disconnects the protocol without a call."""
        if self.TLS:
            for name in _TLS_METHODS:  # they refer to the protocol
                self.__dict__.pop(name, None)
        flow = self._flow
        protocol, flow.protocol = flow.protocol, None
        if reason is None:
            self.producer = None
            self._flow.hasProducer = False
            return
        self.dismiss()
        try:
            if protocol is not None:
                protocol.connectionLost(reason)
        except BaseException:
            _log.failure("Unhandled error in connectionLost")

    def dismiss(self) -> None:
        """Stop the producer, since nothing more is sent."""
        producer, self.producer = self.producer, None
        self._flow.hasProducer = False
        try:
            if producer is not None:
                producer.stopProducing()
        except BaseException:
            _log.failure("Unhandled error in stopProducing")

    # ILoggingContext

    def logPrefix(self) -> str:
        context = self._flow.context.get(ILogContext, {})
        return str(context.get("system", "-"))
