"""
Transports of streams, as far as protocols and producers see them: what all of ours have of Twisted's TCP.

Bytes, and when the connection ends, are the business of an L{End}, which tells its transport what happens.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast, Final, Generic, Protocol, TypeVar

from zope.interface import implementer

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

Address = IPv4Address | IPv6Address
"""The address of an end, as TCP has it."""

_log = Logger()

_PULLS: Final = 16
"""How often a pull producer is asked before what it gave is posted."""

_TLS_METHODS: Final = ("write", "writeSequence", "loseConnection", "registerProducer", "unregisterProducer")


class Bytes(Protocol):
    """
    The bytes of a stream, and what its end and its transport know of each other.

    @ivar context: the logging context of the protocol.
    @ivar isOpen: the application may write; C{isEnding}: it closes when all is posted.
    @ivar isDeaf: nothing is delivered any more; C{isPaused}: not at present.
    @ivar isNoticed: there is a producer.
    @ivar backlog: bytes that are not posted yet.
    """

    context: dict[Any, Any]
    isOpen: bool
    isEnding: bool
    isDeaf: bool
    isPaused: bool
    isNoticed: bool
    protocol: Any

    @property
    def backlog(self) -> int: ...

    def write(self, data: bytes) -> int:
        """Take bytes to be sent; the length of the backlog."""

    def writeSequence(self, chunks: Sequence[bytes]) -> None:
        """Take several byte strings to be sent."""


class End(Protocol):
    """
    The end of a connection, as its transport sees it.

    It calls the methods of the transport that a L{Front} has.
    """

    @property
    def connected(self) -> bool: ...

    @property
    def disconnected(self) -> bool: ...

    @property
    def host(self) -> Address: ...

    @property
    def peer(self) -> Address: ...

    def close(self) -> None:
        """End the connection when all is posted that was written, and a producer is done."""

    def closeWriting(self) -> None:
        """Write nothing any more when all is posted that was written, and a producer is done."""

    def abort(self) -> None:
        """End the connection at once, and forget what is not posted."""

    def resume(self) -> None:
        """Deliver again what arrives, soon."""

    def blame(self, where: str) -> None:
        """End the connection because the application has raised, in the method of that name."""


class Front(Protocol):
    """The application's side of a stream, as its end sees it: a transport, which keeps exceptions off."""

    def begun(self) -> None:
        """Connect the protocol, which may write from now on."""

    def flushed(self) -> None:
        """Let a producer go on: all that was written is posted."""

    def writeEnded(self) -> None:
        """Tell a protocol that closes by halves that its own half is closed."""

    @property
    def knowsHalves(self) -> bool: ...

    def readEnded(self) -> None:
        """Tell a protocol that closes by halves that all is read."""

    def dismiss(self) -> None:
        """Stop the producer: nothing that it writes is sent any more."""

    def ended(self, reason: Failure | None) -> None:
        """Disconnect the protocol, for this reason; None: without a word, as nobody waits for it any more."""


EndT = TypeVar("EndT", bound=End)


def _mustBeBytes(data: object) -> None:
    if not isinstance(data, bytes):
        raise TypeError("Data must be bytes")  # in the words of twisted.internet.abstract


@implementer(IConsumer, IPushProducer, ILoggingContext)
class StreamTransport(Generic[EndT]):
    """
    The transport that a protocol sees of a stream: Twisted's interfaces to an L{End}.

    What is written waits until the end of the connection flushes. (C{__dict__} is for TLS, which needs to
    replace methods; it takes no room otherwise.)

    @ivar stream: the end of the connection.
    """

    __slots__ = (
        *("stream", "_flow", "producer", "streamingProducer", "producerPaused"),
        *("__dict__", "__weakref__"),
    )

    bufferSize = 65536
    TLS = False

    def __init__(self, stream: EndT, flow: Bytes, protocol: IProtocol, system: str) -> None:
        """
        @param system: the prefix of what the protocol logs.
        """
        self.stream = stream
        self._flow = flow
        self.producer: IPushProducer | IPullProducer | None = None
        self.producerPaused = self.streamingProducer = False
        flow.protocol = protocol
        flow.context = {ILogContext: {"isError": 0, "system": system}}

    @property
    def protocol(self) -> IProtocol | None:
        """The protocol that is served; TLS puts itself in its place."""
        return cast("IProtocol | None", self._flow.protocol)

    @protocol.setter
    def protocol(self, protocol: IProtocol | None) -> None:
        self._flow.protocol = protocol

    @property
    def connected(self) -> bool:
        """Whether the protocol has not heard of the connection's end."""
        return self.stream.connected

    @property
    def disconnected(self) -> bool:
        """Whether the protocol has heard of the connection's end."""
        return self.stream.disconnected

    @property
    def disconnecting(self) -> bool:
        """Whether the connection is being closed, so that nothing is delivered any more."""
        return self._flow.isDeaf

    # ITransport

    def write(self, data: bytes) -> None:
        """Write, some time soon and in order."""
        if data.__class__ is not bytes:
            _mustBeBytes(data)
        flow = self._flow
        if data and (not flow.isOpen or flow.write(data) > self.bufferSize) and self.producer is not None:
            self._pauseProducer()  # also where the end is not told yet: it would write, and never hear of it

    def writeSequence(self, iovec: Iterable[bytes]) -> None:
        """Write a sequence of byte strings, in order."""
        chunks = list(iovec)
        for chunk in chunks:
            _mustBeBytes(chunk)
        flow = self._flow
        if not any(chunks):
            return
        if flow.isOpen:
            flow.writeSequence(chunks)
        if (not flow.isOpen or flow.backlog > self.bufferSize) and self.producer is not None:
            self._pauseProducer()  # as in C{write}

    def loseConnection(self) -> None:
        """Write what was written, wait for the producer, then close."""
        self.stream.close()

    def loseWriteConnection(self) -> None:
        """Write what was written, then say that this is all."""
        if self._flow.isOpen:
            self.stream.closeWriting()

    def abortConnection(self) -> None:
        """Close at once, and forget what is not posted."""
        self.stream.abort()

    def getHost(self) -> Address:
        """The address of this end."""
        return self.stream.host

    def getPeer(self) -> Address:
        """The address of the peer."""
        return self.stream.peer

    @property
    def client(self) -> tuple[str, int]:
        """Host and port of the peer, which no interface has, but servers of TCP in Twisted."""
        peer = self.stream.peer
        return peer.host, peer.port

    @property
    def hostname(self) -> str:
        """Host of the peer, for programs, as C{client} is."""
        return self.stream.peer.host

    # IConsumer

    def registerProducer(  # type: ignore[override]  # there are no other producers
        self, producer: IPushProducer | IPullProducer, streaming: bool
    ) -> None:
        """Register a producer for the connection, as L{IConsumer} asks."""
        if self.producer is not None:
            raise RuntimeError(
                f"Cannot register producer {producer}, because producer {self.producer} "
                "was never unregistered."
            )
        if self.disconnected:
            producer.stopProducing()
        else:
            self.producer = producer
            self._flow.isNoticed = True
            self.streamingProducer = streaming
            self.producerPaused = False
            if not streaming:
                producer.resumeProducing()

    def unregisterProducer(self) -> None:
        """Unregister the connection's producer, as L{IConsumer} asks."""
        self.producer = None
        self._flow.isNoticed = False
        if self.connected and self._flow.isEnding:
            self.stream.closeWriting()

    def stopConsuming(self) -> None:
        """The producer has lost interest."""
        self.unregisterProducer()
        self.loseConnection()

    def _pauseProducer(self) -> None:
        if self.streamingProducer:
            self.producerPaused = True
            cast(IPushProducer, self.producer).pauseProducing()

    # IPushProducer

    def pauseProducing(self) -> None:
        """Pause C{dataReceived}, as L{IPushProducer} asks."""
        self._flow.isPaused = True

    def resumeProducing(self) -> None:
        """Resume C{dataReceived}, some time soon."""
        self.stream.resume()

    def stopProducing(self) -> None:
        """Lose the connection, because the consumer of its data is gone."""
        self.loseConnection()

    startReading = resumeProducing
    stopReading = pauseProducing

    # ITLSTransport, but for what the class of the transport has to say

    def startTLS(self, contextFactory: object, normal: bool = True) -> None:
        """Go on with TLS over this connection."""
        from twisted.internet import _newtls

        producer, streaming = self.producer, self.streamingProducer
        if producer is not None:
            self.unregisterProducer()
        _newtls.startTLS(self, contextFactory, normal, type(self))
        for name in _TLS_METHODS:
            self.__dict__[name] = getattr(self.protocol, name)
        if producer is not None:
            self.registerProducer(producer, streaming)

    # What the end of the connection tells

    def begun(self) -> None:
        """Connect the protocol, which may write from now on."""
        try:
            cast(IProtocol, self.protocol).makeConnection(cast(ITransport, self))
        except BaseException:
            self.stream.blame("makeConnection")

    def flushed(self) -> None:
        """Let a producer go on: all that was written is posted."""
        producer = self.producer
        try:
            if producer is None:
                pass
            elif not self.streamingProducer:
                self._pull()
            elif self.producerPaused:
                self.producerPaused = False
                producer.resumeProducing()
        except BaseException:
            self.stream.blame("resumeProducing")

    def _pull(self) -> None:
        """Let a pull producer fill the buffer somewhat, as long as it gives something."""
        flow = self._flow
        for _ in range(_PULLS):
            before = flow.backlog
            cast(IPullProducer, self.producer).resumeProducing()
            if not before < flow.backlog < self.bufferSize or self.producer is None:
                break

    def writeEnded(self) -> None:
        """Tell a protocol that closes by halves that its own half is closed."""
        half = IHalfCloseableProtocol(self.protocol, None)
        if half is not None:
            try:
                half.writeConnectionLost()
            except BaseException:
                self.stream.blame("writeConnectionLost")

    @property
    def knowsHalves(self) -> bool:
        """Whether the protocol closes by halves."""
        return IHalfCloseableProtocol(self.protocol, None) is not None

    def readEnded(self) -> None:
        """Tell a protocol that closes by halves that all is read."""
        half = IHalfCloseableProtocol(self.protocol, None)
        if half is not None:
            try:
                half.readConnectionLost()
            except BaseException:
                self.stream.blame("readConnectionLost")

    def ended(self, reason: Failure | None) -> None:
        """Disconnect the protocol, for this reason; None: without a word, as nobody waits for it any more."""
        if self.TLS:
            for name in _TLS_METHODS:  # they hold on to the protocol
                self.__dict__.pop(name, None)
        protocol, self.protocol = self.protocol, None
        if reason is None:
            self.producer = None
            self._flow.isNoticed = False
            return
        self.dismiss()
        try:
            if protocol is not None:
                protocol.connectionLost(reason)
        except BaseException:
            _log.failure("Unhandled error in connectionLost")

    def dismiss(self) -> None:
        """Stop the producer: nothing that it writes is sent any more."""
        producer, self.producer = self.producer, None
        self._flow.isNoticed = False
        try:
            if producer is not None:
                producer.stopProducing()
        except BaseException:
            _log.failure("Unhandled error in stopProducing")

    # ILoggingContext

    def logPrefix(self) -> str:
        """The log prefix of the connection: as on a TCP transport."""
        context = self._flow.context.get(ILogContext, {})
        return str(context.get("system", "-"))
