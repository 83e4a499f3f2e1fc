"""The end of a stream over the byte transfer layer: a L{ByteStream} on the transport of a connection."""

from __future__ import annotations

from zope.interface import implementer

from twisted.internet.error import ConnectionDone
from twisted.internet.interfaces import IPushProducer
from twisted.python.failure import Failure

from txrdma.btl.stream._bytes import ByteStream
from txrdma.btl.transport import BTLMessageTransport
from txrdma.error import PeerViolation
from txrdma.messages.interfaces import IMessageProtocol
from txrdma.streams.connection import MessageStreamTransport, StreamConnection
from txrdma.streams.transport import streamAddress


def _ignore(error: Exception | None) -> None:
    """Ignore whether the peer has the close of a stream: the peer may have closed, too."""


@implementer(IMessageProtocol, IPushProducer)
class BTLEnd(StreamConnection[ByteStream, BTLMessageTransport]):
    """One end of a stream: the protocol of a message connection, and the producer of its messages."""

    kind = "btl"

    # Calls of the connection: see IMessageProtocol

    def makeConnection(self, transport: BTLMessageTransport) -> None:
        self._core = ByteStream()
        self.host, self.peer = streamAddress(transport.getHost()), streamAddress(transport.getPeer())
        transport.progressed = self._turn
        transport.registerProducer(self, True)
        self._begun(transport)
        if self.connected:
            self._turn()

    def messageReceived(self, data: bytes, immediate: int | None) -> None:
        """Handle data or a close; C{progressed} follows after the batch."""
        core = self._core
        if core is None or core.isOver:
            return
        try:
            core.arrived(data, immediate)
        except PeerViolation as error:
            self._violated(str(error))

    def connectionLost(self, reason: Failure) -> None:
        core = self._core
        try:
            if core is not None:
                core.isCloseDelivered = core.hasSentClose and reason.check(ConnectionDone) is not None
                self._storeRest()
        finally:
            self._ended(reason)

    # The producer of messages; each call is followed by C{progressed}

    def pauseProducing(self) -> None:
        if self._core is not None:
            self._core.isFull = True

    def resumeProducing(self) -> None:
        if self._core is not None:
            self._core.isFull = False

    def stopProducing(self) -> None:
        """Do nothing: C{connectionLost} follows."""

    # Called by the base class

    def _send(self, core: ByteStream, transport: BTLMessageTransport) -> None:
        while (message := core.next()) is not None:
            data, immediate = message
            transport.sendMessage(data, immediate, self._arrived if immediate is None else _ignore)
        if core.hasSentClose:
            transport.unregisterProducer()
            transport.loseConnection()
        if self.isPaused and not self.discardsInput:
            transport.pauseProducing()

    def _leave(self) -> None:
        if self._transport is not None:
            self._transport.unregisterProducer()
        super()._leave()

    def _arrived(self, error: Exception | None) -> None:
        if self._core is not None and error is None:
            self._core.unacknowledged -= 1

    def resume(self) -> None:
        super().resume()
        if self._transport is not None:
            self._transport.resumeProducing()


class BTLTransport(MessageStreamTransport[BTLEnd]):
    """The transport of a stream over the byte transfer layer."""

    __slots__ = ()
