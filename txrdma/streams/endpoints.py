"""Client attempts, accepted connections and listening ports of streams that run over message connections."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any, Generic, TypeVar

from zope.interface import implementer

from twisted.internet.defer import Deferred, fail, maybeDeferred
from twisted.internet.error import ConnectError, ConnectingCancelledError, NoProtocol
from twisted.internet.interfaces import (
    IAddress,
    IListeningPort,
    IProtocol,
    IProtocolFactory,
    IReactorCore,
)
from twisted.logger import Logger
from twisted.python.failure import Failure

from txrdma.error import RDMAError
from txrdma.kit.cancelling import cancellable, wrapped
from txrdma.messages.address import MessageAddress
from txrdma.messages.interfaces import (
    IMessageClientEndpoint,
    IMessageProtocolFactory,
    IMessageServerEndpoint,
)
from txrdma.messages.transport import protocolFor
from txrdma.streams.connection import Declining, MessageEndT, MessageStreamTransport
from txrdma.streams.transport import Address, logName, streamAddress

_log = Logger()

_T = TypeVar("_T")


@implementer(IMessageProtocolFactory)
class StreamAttempt(Generic[MessageEndT]):
    """
    One connection attempt of a client: starts its factory, and stops it after the connection or the failure.

    @ivar end: the stream, which the subclass makes with L{makeTransport} and L{ended}.
    @ivar protocol: the protocol of the stream, available after L{make}.
    """

    transportClass: Callable[[MessageEndT, IProtocol], MessageStreamTransport[MessageEndT]]
    end: MessageEndT
    protocol: IProtocol
    _isConnected = False

    def __init__(self, factory: IProtocolFactory) -> None:
        self._factory = factory

    def connect(self, endpoint: IMessageClientEndpoint, destination: IAddress | None) -> Deferred[IProtocol]:
        """
        Connect.

        @param destination: address for the error of a cancelled attempt.
        @return: fires with the protocol; fails as the TCP endpoints do.
        """
        try:
            self._factory.doStart()
        except Exception:
            return fail()
        connecting = maybeDeferred(endpoint.connect, self).addCallback(self._started).addErrback(self.failed)
        made = wrapped(connecting, lambda made: cancellable(made, ConnectingCancelledError(destination)))
        connecting.addBoth(self._stopped)
        return made

    def _stopped(self, result: _T) -> _T:
        """
        Stop the factory of a failed attempt, after its result as over TCP: C{stopFactory} may cancel it.

        The factory of a connection that C{connectionMade} has cancelled is stopped at its end.
        """
        if not self._isConnected:
            self.ended()
        return result

    def buildProtocol(self, peer: MessageAddress) -> MessageEndT:
        """Make the protocol of the stream; return the stream, which is the message protocol."""
        self.make(streamAddress(peer))
        return self.end

    def make(self, peer: Address) -> None:
        """Make the protocol. Raises L{NoProtocol} if the factory returned None."""
        protocol = protocolFor(self._factory, peer)
        if protocol is None:
            raise NoProtocol
        logName(protocol)  # the transport can't be made if that raises
        self.protocol = protocol

    def _started(self, _: object) -> IProtocol:
        """Return the protocol, unless an exception, which is logged, has prevented its start."""
        if not self._isConnected:
            raise ConnectError(string="the stream could not be started")
        return self.protocol

    def makeTransport(self, end: MessageEndT) -> MessageStreamTransport[MessageEndT]:
        """Make the transport of the stream, at whose end L{ended} is called."""
        self._isConnected = True
        return self.transportClass(end, self.protocol)

    def ended(self) -> None:
        """Stop the factory, since the connection is closed."""
        with _log.failuresHandled("doStop of {factory!r} failed", factory=self._factory):
            self._factory.doStop()

    def failed(self, failure: Failure) -> Failure:
        """Return the failure as the TCP endpoints report it."""
        error = failure.value
        known = None if error is None else self.known(error)
        if known is None and isinstance(error, (RDMAError, ValueError)):
            known = ConnectError(string=str(error))
        return failure if known is None else Failure(known)

    def known(self, error: BaseException) -> BaseException | None:
        """Convert an error to the corresponding TCP error; None if there is none."""
        return None


@implementer(IMessageProtocolFactory)
class AcceptedStreams(Generic[MessageEndT]):
    """
    The message factory of a listening port of streams.

    A subclass implements C{buildProtocol}, which returns a stream made with L{makeTransport}.
    """

    transportClass: Callable[[MessageEndT, IProtocol, int], MessageStreamTransport[MessageEndT]]

    def __init__(self, reactor: Any, factory: IProtocolFactory) -> None:
        self._reactor, self._factory = reactor, factory
        self._numbers = count()

    def listen(self, endpoint: IMessageServerEndpoint, kind: str) -> Deferred[IListeningPort]:
        """
        Listen.

        @param kind: the prefix of endpoint strings, for the log.
        @return: fails with C{CannotListenError}.
        """

        def listening(port: IListeningPort) -> IListeningPort:
            return StreamPort(self._reactor, port, self._factory, kind)

        return endpoint.listen(self).addCallback(listening)

    def buildProtocol(self, peer: MessageAddress) -> MessageEndT | None:
        raise NotImplementedError

    def makeTransport(self, end: MessageEndT) -> MessageStreamTransport[MessageEndT]:
        """Make the transport of a stream, with its protocol."""
        protocol = protocolFor(self._factory, end.peer) or Declining()
        return self.transportClass(end, protocol, next(self._numbers))


@implementer(IListeningPort)
class StreamPort:
    """A listening port of streams, on top of a listening port of message connections."""

    _reactor: IReactorCore | None = None

    def __init__(
        self,
        reactor: Any,
        port: IListeningPort,
        factory: IProtocolFactory,
        kind: str,
    ) -> None:
        """@param kind: the prefix of endpoint strings, for the log."""
        self._port, self._factory, self._kind = port, factory, kind
        self._isListening = True
        try:
            number = self.getHost().port
            factory.doStart()
        except BaseException:
            port.stopListening()
            raise
        if IReactorCore.providedBy(reactor):
            self._reactor = reactor
            self._trigger = reactor.addSystemEventTrigger("during", "shutdown", self._stopFactory)
        name = type(factory).__name__
        _log.info("{name} ({kind}) starting on {port}", name=name, kind=kind, port=number)

    def __repr__(self) -> str:
        return f"<StreamPort {self._kind} {self._port!r}>"

    def startListening(self) -> None:
        """Do nothing: the endpoint has started to listen."""

    def stopListening(self) -> Deferred[None] | None:
        """Stop listening. Connections stay open. Idempotent."""
        stopped = self._port.stopListening()  # first: the factory may raise
        if self._isListening:
            if self._reactor is not None:
                self._reactor.removeSystemEventTrigger(self._trigger)
            self._stopFactory()
        return stopped

    def _stopFactory(self) -> None:
        """Stop the factory: the port is closed, or the reactor stops."""
        self._isListening, self._reactor = False, None
        text = "doStop of {factory!r} failed; its port is closed"
        with _log.failuresHandled(text, factory=self._factory):
            self._factory.doStop()

    def getHost(self) -> Address:
        host: Any = self._port.getHost()  # a MessageAddress
        return streamAddress(host)
