"""
The end of a stream over the byte transfer layer: a L{ByteStream} on the transport of a connection.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from zope.interface import implementer

from twisted.internet.error import ConnectionDone
from twisted.internet.interfaces import IProtocol, IPushProducer, ITCPTransport, ITLSTransport
from twisted.python.failure import Failure

from txrdma.btl.stream._bytes import ByteStream, Violation
from txrdma.btl.transport import MessageTransport
from txrdma.messages.interfaces import IMessageProtocol
from txrdma.streams.connection import StreamEnd
from txrdma.streams.transport import Address, Front, StreamTransport


@implementer(IMessageProtocol, IPushProducer)
class BTLEnd(StreamEnd[ByteStream, MessageTransport]):
    """
    An end of a connection: a protocol of messages, beneath one of bytes, and the producer of its messages.
    """

    def __init__(
        self,
        reactor: Any,
        isClient: bool,
        dress: Callable[[BTLEnd], Front],
        ended: Callable[[], None] = lambda: None,
    ) -> None:
        """
        @param dress: makes the transport, with the protocol.
        @param ended: called when the protocol has heard of the end.
        """
        super().__init__(reactor, isClient, dress, ended)

    def __repr__(self) -> str:
        return f"<BTLEnd {'client' if self.isClient else 'server'} {self._transport!r}>"

    # What the connection brings: see IMessageProtocol

    def makeConnection(self, transport: MessageTransport) -> None:
        """Begin: the connection is established."""
        self._core = ByteStream()
        self.host, self.peer = cast(Address, transport.getHost()), cast(Address, transport.getPeer())
        transport.progressed = self._turn
        transport.registerProducer(self, True)
        self._begun(transport)
        if self.connected:
            self._turn()

    def connectionMade(self) -> None:
        """Do nothing: C{makeConnection} has begun."""

    def messageReceived(self, data: bytes, immediate: int | None) -> None:
        """Take bytes of the peer, or what it says of its end; its turn comes with those of the batch."""
        core = self._core
        if core is None or core.isOver:
            return
        try:
            core.arrived(data, immediate)
        except Violation as error:
            self._violated(str(error))

    def connectionLost(self, reason: Failure) -> None:
        """End, by what the connection beneath says and by what the peer has said before."""
        core = self._core
        if core is not None:
            core.hasParted = core.hasSaid and reason.check(ConnectionDone) is not None
            self._keepRest()
        self._lost(reason)

    # The producer of messages

    def pauseProducing(self) -> None:
        """Send nothing for now: enough is on its way."""
        if self._core is not None:
            self._core.isFull = True

    def resumeProducing(self) -> None:
        """Send on; the turn comes with the end of the batch."""
        if self._core is not None:
            self._core.isFull = False

    def stopProducing(self) -> None:
        """Do nothing: the connection's end is told by C{connectionLost}."""

    # What a stream's end needs

    def _send(self, core: ByteStream, transport: MessageTransport) -> None:
        while (message := core.next()) is not None:
            data, immediate = message
            transport.sendMessage(data, immediate, self._arrived if immediate is None else None)
        if core.hasSaid:
            transport.unregisterProducer()
            transport.loseConnection()
        if self.isPaused and not self.isDeaf:
            transport.pauseProducing()

    def _leave(self) -> None:
        if self._transport is not None:
            self._transport.unregisterProducer()
        super()._leave()

    def _arrived(self, error: Exception | None) -> None:
        if self._core is not None and error is None:
            self._core.flying -= 1

    def resume(self) -> None:
        """Deliver again what arrives, soon."""
        super().resume()
        if self._transport is not None:
            self._transport.resumeProducing()


@implementer(ITCPTransport, ITLSTransport)
class BTLTransport(StreamTransport[BTLEnd]):
    """The transport that a protocol sees of a stream: for it all is as on Twisted's TCP transport."""

    __slots__ = ()

    def __init__(self, stream: BTLEnd, protocol: IProtocol) -> None:
        role = "client" if stream.isClient else str(stream.host.port)
        super().__init__(stream, stream, protocol, f"{type(protocol).__name__},{role},{stream.peer.host}")

    def __repr__(self) -> str:
        stream = self.stream
        role = "client" if stream.isClient else "server"
        return f"<BTLTransport {role} to {stream.peer.host}:{stream.peer.port}>"

    # ITCPTransport

    def getTcpNoDelay(self) -> bool:
        """Whether data are sent without a delay: always."""
        return True

    def setTcpNoDelay(self, enabled: bool) -> None:
        """Leave all as it is: nothing is ever delayed."""

    def getTcpKeepAlive(self) -> bool:
        """Whether an idle peer is probed: always."""
        return True

    def setTcpKeepAlive(self, enabled: bool) -> None:
        """Leave all as it is: the module asks its peers by itself."""

    def getHandle(self) -> None:
        """The socket of the connection: there is none."""

    @property
    def _tlsClientDefault(self) -> bool:
        return self.stream.isClient
