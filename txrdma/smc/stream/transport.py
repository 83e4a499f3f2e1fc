"""
The transport of a stream over SMC-R: for protocols it is as Twisted's TCP transport.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast, Final, TYPE_CHECKING

from zope.interface import implementer

from twisted.internet.interfaces import (
    IConsumer,
    IHalfCloseableProtocol,
    ILoggingContext,
    IProtocol,
    IPullProducer,
    IPushProducer,
    ITCPTransport,
    ITLSTransport,
)
from twisted.internet.tcp import Connection, Server
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.python.log import ILogContext

from txrdma.interfaces import ISMCTransport
from txrdma.smc.group._linkgroup import Role
from txrdma.smc.handshake.plaintcp import prefixFor
from txrdma.smc.insight import status
from txrdma.smc.stream.stream import Address, Stream
from txrdma.smc.stream.writing import mustBeBytes, Writing

if TYPE_CHECKING:
    from socket import socket

_log = Logger()

_PULLS: Final = 16
"""How often a pull producer is asked before what it gave is posted."""

_TLS_METHODS: Final = ("write", "writeSequence", "loseConnection", "registerProducer", "unregisterProducer")


@implementer(ISMCTransport, ITCPTransport, ITLSTransport, IConsumer, IPushProducer, ILoggingContext)
class SMCTransport(Writing):
    """
    The transport that a protocol sees of a connection over SMC-R: Twisted's interfaces to a L{Stream}.

    What is written waits until the link flushes. (C{__dict__} is for TLS, which needs to replace methods; it
    takes no room otherwise.)

    @ivar stream: the end of the connection.
    @ivar sessionno: number of the connection among those that its port has accepted, for servers only. No
        interface has it, but Twisted's TCP transports do, and programs read it there.
    """

    __slots__ = (
        *("stream", "streamingProducer", "producerPaused", "sessionno"),
        *("__dict__", "__weakref__"),
    )

    sessionno: int
    bufferSize = 65536
    TLS = False

    def __init__(self, stream: Stream, protocol: IProtocol, tcp: Connection) -> None:
        flow = stream.flow
        super().__init__(flow)
        self.stream = stream
        self.producerPaused = self.streamingProducer = False
        if isinstance(tcp, Server):
            self.sessionno = tcp.sessionno
        flow.protocol = protocol
        flow.context = {ILogContext: {"isError": 0, "system": prefixFor(tcp, protocol)}}

    def __repr__(self) -> str:
        stream = self.stream
        return f"<SMCTransport {stream.role.value} {stream.state} to {status.describe(stream.peer)}>"

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

    # ITransport: write is Writing's

    def writeSequence(self, iovec: Iterable[bytes]) -> None:
        """Write a sequence of byte strings, in order."""
        chunks = list(iovec)
        for chunk in chunks:
            mustBeBytes(chunk)
        if self._flow.isOpen and any(chunks):
            self._flow.writeSequence(chunks)
            if self.producer is not None:
                self._hasWritten()

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
        """Our address of the TCP connection."""
        return self.stream.host

    def getPeer(self) -> Address:
        """The peer's address of the TCP connection."""
        return self.stream.peer

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

    def _hasWritten(self) -> None:
        if self.streamingProducer and self._flow.backlog > self.bufferSize:
            self.producerPaused = True
            cast(IPushProducer, self.producer).pauseProducing()

    # IPushProducer

    def pauseProducing(self) -> None:
        """Pause C{dataReceived}, as L{IPushProducer} asks."""
        self._flow.isPaused = True

    def resumeProducing(self) -> None:
        """Resume C{dataReceived}, in the link's next turn."""
        self.stream.resume()

    def stopProducing(self) -> None:
        """Lose the connection, because the consumer of its data is gone."""
        self.loseConnection()

    startReading = resumeProducing
    stopReading = pauseProducing

    # ITCPTransport

    def getTcpNoDelay(self) -> bool:
        """Whether TCP_NODELAY is set on the TCP connection beneath, which carries no data."""
        return (tcp := self.stream.tcp) is not None and tcp.getTcpNoDelay()

    def setTcpNoDelay(self, enabled: bool) -> None:
        """Set TCP_NODELAY on the TCP connection beneath; SMC-R itself never delays data."""
        if (tcp := self.stream.tcp) is not None:
            tcp.setTcpNoDelay(enabled)

    def getTcpKeepAlive(self) -> bool:
        """Whether keep-alive is set on the TCP connection beneath; False when there is none."""
        return (tcp := self.stream.tcp) is not None and tcp.getTcpKeepAlive()

    def setTcpKeepAlive(self, enabled: bool) -> None:
        """Have TCP look after the peer's host, too."""
        if (tcp := self.stream.tcp) is not None:
            tcp.setTcpKeepAlive(enabled)

    def getHandle(self) -> socket | None:
        """
        The socket of the TCP connection, for its options; the stream does not go by it.

        @return: the socket, or None when the connection has ended.
        """
        return None if (tcp := self.stream.tcp) is None else tcp.getHandle()

    # ITLSTransport

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

    @property
    def _tlsClientDefault(self) -> bool:
        return self.stream.role is Role.CLIENT

    # What the stream tells: see txrdma.smc.stream.stream.Front

    def begun(self) -> None:
        """Connect the protocol, which may write from now on."""
        status.register(self)
        try:
            cast(IProtocol, self.protocol).makeConnection(self)
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
        status.forget(self)
        producer, self.producer = self.producer, None
        protocol, self.protocol = self.protocol, None
        self._flow.isNoticed = False
        if reason is None:
            return
        try:
            if producer is not None:
                producer.stopProducing()
        except BaseException:
            _log.failure("Unhandled error in stopProducing")
        try:
            if protocol is not None:
                protocol.connectionLost(reason)
        except BaseException:
            _log.failure("Unhandled error in connectionLost")

    # ISMCTransport, ILoggingContext

    def logPrefix(self) -> str:
        """The log prefix of the connection: as on a TCP transport."""
        context = self._flow.context.get(ILogContext, {})
        return str(context.get("system", "-"))

    @property
    def smc(self) -> status.SMCStatus:
        """The status of this connection: its device, link group, counters and diagnosis."""
        return status.SMCStatus(self.stream)


class PromptTransport(SMCTransport):
    """A transport whose writes go out at once, each by a message of its own (C{autocork=no})."""

    __slots__ = ()

    def write(self, data: bytes) -> None:
        """Write at once and in order; what a producer writes goes out by turns."""
        super().write(data)
        self._hurry()

    def writeSequence(self, iovec: Iterable[bytes]) -> None:
        """Write a sequence of byte strings at once, in order, by one message."""
        super().writeSequence(iovec)
        self._hurry()

    def _hurry(self) -> None:
        flow = self._flow
        if flow.isDirty and not (flow.isNoticed or flow.isEnding or flow.isDoubtful):
            self.stream.link.turn.postNow(flow)
