"""
The transport of a stream over SMC-R: for protocols it is as Twisted's TCP transport.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast, Final, TYPE_CHECKING

from zope.interface import implementer

from twisted.internet.error import ConnectionAborted, ConnectionDone, ConnectionLost
from twisted.internet.interfaces import (
    IConsumer,
    IHalfCloseableProtocol,
    ILoggingContext,
    IPullProducer,
    IPushProducer,
    ITCPTransport,
    ITLSTransport,
)
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.python.log import ILogContext

from txrdma.interfaces import ISMCTransport
from txrdma.smc.group._linkgroup import Role
from txrdma.smc.insight import status
from txrdma.smc.stream._closing import Ending
from txrdma.smc.stream._flow import ENDS
from txrdma.smc.stream.stream import Stream

if TYPE_CHECKING:
    from socket import socket

    from twisted.internet.address import IPv4Address, IPv6Address

    Address = IPv4Address | IPv6Address


_log = Logger()

_PULLS: Final = 16
"""How often a pull producer is asked before what it gave is posted."""

_TLS_METHODS: Final = ("write", "writeSequence", "loseConnection", "registerProducer", "unregisterProducer")


def _mustBeBytes(data: object) -> None:
    if not isinstance(data, bytes):
        raise TypeError("Data must be bytes")  # in the words of twisted.internet.abstract


@implementer(ISMCTransport, ITCPTransport, ITLSTransport, IConsumer, IPushProducer, ILoggingContext)
class SMCTransport(Stream):
    """
    The transport that a protocol sees of a connection over SMC-R: a L{Stream} and Twisted's interfaces.

    What is written waits until the link flushes. (C{__dict__} is for TLS, which needs to replace methods; it
    takes no room otherwise.)

    @ivar sessionno: number of the connection among those that its port has accepted, for servers only. No
        interface has it, but Twisted's TCP transports do, and programs read it there.
    """

    __slots__ = ("__dict__", "sessionno")

    sessionno: int

    # ITransport

    def write(self, data: bytes) -> None:
        """Write, some time soon and in order."""
        if data.__class__ is not bytes:
            _mustBeBytes(data)
        flow = self.flow
        if data and flow.isOpen and flow.write(data) > self.bufferSize and self.producer is not None:
            self._pauseProducer()

    def writeSequence(self, iovec: Iterable[bytes]) -> None:
        """Write a sequence of byte strings, in order."""
        chunks = list(iovec)
        for chunk in chunks:
            _mustBeBytes(chunk)
        if self.flow.isOpen and any(chunks):
            self.flow.writeSequence(chunks)
            if self.flow.backlog > self.bufferSize and self.producer is not None:
                self._pauseProducer()

    def loseConnection(self) -> None:
        """Write what was written, wait for the producer, then close."""
        if self.connected and not self.disconnecting:
            self.disconnecting = 1
            self.flow.isEnding = True
            if self.flow.isPaused:  # nobody will read what comes, but the peer needs the room for it
                self.flow.isPaused = False
                self._turn.soon(self.resumed)
            if not self.flow.isDirty:
                self.flow.touch()

    def loseWriteConnection(self) -> None:
        """Write what was written, then say that this is all."""
        if self.flow.isOpen:
            self.flow.isEnding = True
            if not self.flow.isDirty:
                self.flow.touch()

    def abortConnection(self) -> None:
        """Close at once, and forget what is not posted."""
        if not self.disconnected and not self._isAborting:
            self._abort()

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
            self.flow.isNoticed = True
            self.streamingProducer = streaming
            self.producerPaused = False
            if not streaming:
                producer.resumeProducing()

    def unregisterProducer(self) -> None:
        """Unregister the connection's producer, as L{IConsumer} asks."""
        self.producer = None
        self.flow.isNoticed = False
        if self.connected and self.flow.isEnding and not self.flow.isDirty:
            self.flow.touch()

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
        self.flow.isPaused = True

    def resumeProducing(self) -> None:
        """Resume C{dataReceived}, in the link's next turn."""
        if self.connected and not self.disconnecting and self.flow.isPaused:
            self.flow.isPaused = False
            self._turn.soon(self.resumed)

    def stopProducing(self) -> None:
        """Lose the connection, because the consumer of its data is gone."""
        self.loseConnection()

    startReading = resumeProducing
    stopReading = pauseProducing

    # ITCPTransport

    def getTcpNoDelay(self) -> bool:
        """Whether TCP_NODELAY is set on the TCP connection beneath, which carries no data."""
        companion = self._companion
        return companion is not None and companion.tcp.getTcpNoDelay()

    def setTcpNoDelay(self, enabled: bool) -> None:
        """Set TCP_NODELAY on the TCP connection beneath; SMC-R itself never delays data."""
        companion = self._companion
        if companion is not None:
            companion.tcp.setTcpNoDelay(enabled)

    def getTcpKeepAlive(self) -> bool:
        """Whether keep-alive is set on the TCP connection beneath; False when there is none."""
        companion = self._companion
        return companion is not None and companion.tcp.getTcpKeepAlive()

    def setTcpKeepAlive(self, enabled: bool) -> None:
        """Have TCP look after the peer's host, too."""
        companion = self._companion
        if companion is not None:
            companion.tcp.setTcpKeepAlive(enabled)

    def getHandle(self) -> socket | None:
        """
        The socket of the TCP connection, for its options; the stream does not go by it.

        @return: the socket, or None when the connection has ended.
        """
        companion = self._companion
        return None if companion is None else companion.tcp.getHandle()

    # ITLSTransport

    def startTLS(self, contextFactory: object, normal: bool = True) -> None:
        """Go on with TLS over this connection."""
        from twisted.internet import _newtls

        producer, streaming = self.producer, self.streamingProducer
        if producer is not None:
            self.unregisterProducer()
        _newtls.startTLS(self, contextFactory, normal, SMCTransport)
        for name in _TLS_METHODS:
            self.__dict__[name] = getattr(self.protocol, name)
        if producer is not None:
            self.registerProducer(producer, streaming)

    @property
    def _tlsClientDefault(self) -> bool:
        return self.role is Role.CLIENT

    # What the stream tells

    def wasFlushed(self) -> None:
        """Tell producers and half-closers that all that was written is posted."""
        producer = self.producer
        if producer is not None and self.connected and not self.flow.backlog and not self._isAborting:
            try:
                if not self.streamingProducer:
                    self._pull()
                elif self.producerPaused:
                    self.producerPaused = False
                    producer.resumeProducing()
            except BaseException:
                self.blame("resumeProducing")
        if self._hasStoppedWriting:
            self._hasStoppedWriting = False
            half = IHalfCloseableProtocol(self.protocol, None)
            if half is not None:
                try:
                    half.writeConnectionLost()
                except BaseException:
                    self.blame("writeConnectionLost")
        self._happened()
        if self.isDoubtful and self._companion is not None:
            self._companion.doubt()
        if not self.flow.isEnding and self.disconnecting and not self._closing.over:
            self._turn.deliver(self, self.flow.last)

    def _pull(self) -> None:
        """Let a pull producer fill the buffer somewhat, as long as it gives something."""
        for _ in range(_PULLS):
            before = self.flow.backlog
            cast(IPullProducer, self.producer).resumeProducing()
            if not before < self.flow.backlog < self.bufferSize or self.producer is None or self._isAborting:
                break

    def _readEnded(self) -> None:
        half = IHalfCloseableProtocol(self.protocol, None)
        if half is not None and not self.disconnecting:
            try:
                half.readConnectionLost()
            except BaseException:
                self.blame("readConnectionLost")
        elif not self.disconnecting or self.flow.peerState & ENDS:
            self._isHasty = self.flow.isEnding = True
            self.disconnecting = 1
            if not self.flow.isDirty:
                self.flow.touch()

    def _ended(self, how: Ending) -> None:
        """The application's part is over."""
        failure = self._failure
        if failure is None:
            failure = Failure(_REASONS[how]())
        self._failure = None
        self.flow.drop()
        self.connected = 0
        self.disconnected = self.disconnecting = 1  # what still comes is for nobody
        for name in _TLS_METHODS:  # they hold on to the protocol
            self.__dict__.pop(name, None)
        status.forget(cast(Any, self))
        self.link.group.linger(self)
        self._mayLeaveTCP(how)
        producer, self.producer = self.producer, None
        protocol, self.protocol = self.protocol, None
        contexts = self.link.contexts
        contexts.append(self.flow.context)
        try:
            if producer is not None:
                producer.stopProducing()
        except BaseException:
            _log.failure("Unhandled error in stopProducing")
        try:
            if protocol is not None:
                protocol.connectionLost(failure)
        except BaseException:
            _log.failure("Unhandled error in connectionLost")
        finally:
            contexts.pop()
        use, self._use = self._use, None
        if use is not None:
            use.release()

    def _mayLeaveTCP(self, how: Ending) -> None:
        """
        Close TCP with the application's part, unless the peer may take that for an answer.

        A peer that has not said anything may still be in the handshake, and fall back. On this host it reads
        our Confirm before an end in order, and then what the link has brought; a reset would overtake them.
        """
        if self.flow.messagesReceived and how is not Ending.LOST:
            self._closeTCP(how is Ending.DONE)
        elif self.link.groups.canRest and how in (Ending.DONE, Ending.ABORTED):
            self._closeTCP(True)

    def _leave(self) -> None:
        """
        Leave the reactor as TCP would: the peer has gone, and there is nothing to deliver or to post.

        So it is with who has paused, or may still write. What such an application does next rouses the link
        (L{txrdma.smc.group.turn.Turn.schedule}).
        """
        use = self._use
        isIdle = not (self.disconnecting or self.flow.backlog or self.producer is not None)
        if use is not None and isIdle and self.link.groups.canRest:
            self._use = None
            self._closeTCP(inOrder=True)
            use.release()

    # ISMCTransport, ILoggingContext

    def logPrefix(self) -> str:
        """The log prefix of the connection: as on a TCP transport."""
        context = self.flow.context.get(ILogContext, {})
        return str(context.get("system", "-"))

    @property
    def smc(self) -> status.SMCStatus:
        """The status of this connection: its device, link group, counters and diagnosis."""
        return status.SMCStatus(self)


_REASONS: Final = {
    Ending.DONE: ConnectionDone,
    Ending.ABORTED: ConnectionAborted,
    Ending.RESET: ConnectionLost,
    Ending.BROKEN: ConnectionLost,
    Ending.LOST: ConnectionLost,
}
