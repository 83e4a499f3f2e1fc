"""
The end of a stream over the byte transfer layer: a L{ByteStream} on the transport of a connection.
"""

from __future__ import annotations

from typing import cast

from zope.interface import implementer

from twisted.internet.error import ConnectionDone
from twisted.internet.interfaces import IPushProducer
from twisted.python.failure import Failure

from txrdma.btl.stream._bytes import ByteStream
from txrdma.btl.transport import BTLMessageTransport
from txrdma.error import PeerViolation
from txrdma.messages.interfaces import IMessageProtocol
from txrdma.streams.connection import MessageStreamTransport, StreamEnd
from txrdma.streams.transport import Address


@implementer(IMessageProtocol, IPushProducer)
class BTLEnd(StreamEnd[ByteStream, BTLMessageTransport]):
    """
    An end of a connection: a protocol of messages, beneath one of bytes, and the producer of its messages.
    """

    # What the connection brings: see IMessageProtocol

    def makeConnection(self, transport: BTLMessageTransport) -> None:
        """Begin: the connection is established."""
        self._core = ByteStream()
        self.host, self.peer = cast(Address, transport.getHost()), cast(Address, transport.getPeer())
        transport.progressed = self._turn
        transport.registerProducer(self, True)
        self._begun(transport)
        if self.connected:
            self._turn()

    def messageReceived(self, data: bytes, immediate: int | None) -> None:
        """Take bytes of the peer, or what it says of its end; its turn comes with those of the batch."""
        core = self._core
        if core is None or core.isOver:
            return
        try:
            core.arrived(data, immediate)
        except PeerViolation as error:
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

    def _send(self, core: ByteStream, transport: BTLMessageTransport) -> None:
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


class BTLTransport(MessageStreamTransport[BTLEnd]):
    """The transport of a stream over the byte transfer layer."""

    __slots__ = ()
