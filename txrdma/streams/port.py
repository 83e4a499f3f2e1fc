"""
Client attempts and listening ports of streams that run over message connections.
"""

from __future__ import annotations

from typing import Any

from zope.interface import implementer

from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectError, NoProtocol
from twisted.internet.interfaces import IListeningPort, IProtocol, IProtocolFactory
from twisted.logger import Logger
from twisted.python.failure import Failure

from txrdma.error import RDMAError
from txrdma.streams.transport import Address

_log = Logger()


class Connecting:
    """
    One attempt of a client: starts its factory, and stops it after the connection or the failure.

    @ivar protocol: available after L{make}.
    """

    protocol: IProtocol

    def __init__(self, factory: IProtocolFactory) -> None:
        self._factory = factory

    def make(self, peer: Address) -> None:
        """
        Make the protocol.

        @raise NoProtocol: the factory returned None.
        """
        protocol = self._factory.buildProtocol(peer)
        if protocol is None:
            raise NoProtocol
        self.protocol = protocol

    def ended(self) -> None:
        """Stop the factory, since the connection is closed."""
        self._factory.doStop()

    def failed(self, failure: Failure) -> Failure:
        """Stop the factory; return the failure as the TCP endpoints report it."""
        self._factory.doStop()
        error = failure.value
        known = None if error is None else self.known(error)
        if known is None and isinstance(error, (RDMAError, ValueError)):
            known = ConnectError(string=str(error))
        return failure if known is None else Failure(known)

    def known(self, error: BaseException) -> BaseException | None:
        """Return the TCP error that corresponds to an error; None if there is none."""
        return None


@implementer(IListeningPort)
class StreamPort:
    """A listening port of streams, on top of one of message connections."""

    def __init__(self, port: IListeningPort, factory: IProtocolFactory, kind: str) -> None:
        """
        @param kind: the prefix of its endpoint strings.
        """
        self._port, self._factory, self._kind = port, factory, kind
        self._isListening = True
        try:
            factory.doStart()
        except BaseException:
            port.stopListening()
            raise
        name, number = type(factory).__name__, self.getHost().port
        _log.info("{name} ({kind}) starting on {port}", name=name, kind=kind, port=number)

    def __repr__(self) -> str:
        return f"<StreamPort {self._kind} {self._port!r}>"

    def startListening(self) -> None:
        """Do nothing: the endpoint has started to listen."""

    def stopListening(self) -> Deferred[None] | None:
        """Stop listening. Connections stay open. Idempotent."""
        stopped = self._port.stopListening()  # first: the factory may raise
        if self._isListening:
            self._isListening = False
            text = "doStop of {factory!r} failed; its port is closed"
            with _log.failuresHandled(text, factory=self._factory):
                self._factory.doStop()
        return stopped

    def getHost(self) -> Address:
        """The address of the port."""
        return self.addressOf(self._port.getHost())

    def addressOf(self, host: Any) -> Address:
        """The TCP address that corresponds to the address of the message port."""
        found: Address = host
        return found
