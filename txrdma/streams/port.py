"""
Attempts at streams, and ports that accept them, above endpoints of messages: what such streams share.
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
    One attempt of a client, whose factory is started, and is stopped at the end of what comes of it.

    @ivar protocol: from C{make} on.
    """

    protocol: IProtocol

    def __init__(self, factory: IProtocolFactory) -> None:
        self._factory = factory

    def make(self, peer: Address) -> None:
        """
        Make the protocol.

        @raise NoProtocol: the factory has none.
        """
        protocol = self._factory.buildProtocol(peer)
        if protocol is None:
            raise NoProtocol
        self.protocol = protocol

    def ended(self) -> None:
        """Stop the factory: the protocol has heard of the end."""
        self._factory.doStop()

    def failed(self, failure: Failure) -> Failure:
        """Stop the factory; answer the error as TCP's endpoints have it."""
        self._factory.doStop()
        error = failure.value
        known = None if error is None else self.known(error)
        if known is None and isinstance(error, (RDMAError, ValueError)):
            known = ConnectError(string=str(error))
        return failure if known is None else Failure(known)

    def known(self, error: BaseException) -> BaseException | None:
        """Translate an error that TCP has a name for; None is any other."""
        return None


@implementer(IListeningPort)
class StreamPort:
    """A port that accepts streams, above one that accepts connections for messages."""

    def __init__(self, port: IListeningPort, factory: IProtocolFactory, kind: str) -> None:
        """
        @param kind: the first word of its endpoint strings.
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
        """Listen from now on; the endpoint has done so."""

    def stopListening(self) -> Deferred[None] | None:
        """Listen no more; connections stay. Twice is fine."""
        stopped = self._port.stopListening()  # first: the factory may raise
        if self._isListening:
            self._isListening = False
            with _log.failuresHandled("doStop of {factory!r} failed; its port stops", factory=self._factory):
                self._factory.doStop()
        return stopped

    def getHost(self) -> Address:
        """The address that is listened to."""
        return self.addressOf(self._port.getHost())

    def addressOf(self, host: Any) -> Address:
        """The address of the port beneath, as Twisted has it for TCP."""
        found: Address = host
        return found
