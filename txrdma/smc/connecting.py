"""
A client's connection with the userspace stack, from C{connect} until the user's protocol is connected.

This module connects to IP addresses itself, since Twisted's TCP endpoints would add a factory, a protocol and
Deferreds between the TCP client and the handshake. For host names it uses C{HostnameEndpoint}, which may open
several TCP connections.
"""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Any, cast

from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectingCancelledError
from twisted.internet.interfaces import IAddress, IConnector, IProtocol, IProtocolFactory
from twisted.python.failure import Failure

from txrdma.smc.common.reactoruse import reactorUse, Use
from txrdma.smc.dialing import bindingOf, cancellable, endpointTo, isNumeric, timeoutOf
from txrdma.smc.handshake.carriers import carrierFor
from txrdma.smc.handshake.outcomes import Outcomes
from txrdma.smc.handshake.proposing import ClientNegotiation
from txrdma.smc.signalling.dialing import dial
from txrdma.smc.terms.options import Options
from txrdma.smc.wrapping import HandshakeFactory


class Connecting(HandshakeFactory):
    """Begins a handshake on each TCP connection of one call of an endpoint's C{connect}."""

    def __init__(self, wrapped: IProtocolFactory, reactor: Any, options: Options, outcomes: Outcomes) -> None:
        super().__init__(wrapped)
        self._reactor = reactor
        self._options = options
        self._outcomes = outcomes
        # Held before the TCP connection exists: the last other use may end meanwhile, which may close link
        # groups.
        self._use: Use | None = reactorUse(reactor).hold()
        self._connector: IConnector | None = None
        self._negotiation: ClientNegotiation | None = None
        self._connected: Deferred[IProtocol] | None = None

    def toAddress(self, host: str, port: int) -> Deferred[IProtocol]:
        options = self._options
        carrier = carrierFor(self._reactor, options)
        connected: Deferred[IProtocol] = Deferred(self._cancelled)
        self._connected = connected.addBoth(self._ended)
        try:
            factory: Any = self
            dial(self._reactor, carrier, host, port, factory, timeoutOf(options), bindingOf(options))
        except Exception:
            self._failed(Failure())
        return connected

    def toName(self, name: str, port: int) -> Deferred[IProtocol]:
        """Resolve a host name, and connect to the first of its addresses that answers."""
        dialing = partial(dial, self._reactor, carrierFor(self._reactor, self._options))
        endpoint = endpointTo(self._reactor, name, port, self._options, dialing)
        found = cast("Deferred[ClientNegotiation]", endpoint.connect(self))
        finished: Deferred[IProtocol] = found.addCallback(lambda negotiation: negotiation.finished())
        return cancellable(finished.addBoth(self._ended), name, port)

    def buildProtocol(self, addr: IAddress | None) -> ClientNegotiation:
        use, self._use = self._use, None  # with several addresses, another negotiation holds its own use
        options, build = self._options, self.builder(addr)
        negotiation = ClientNegotiation(
            self._reactor, options, self._outcomes, build, use, self._connected, self.wrapped
        )
        self._negotiation = negotiation
        return negotiation

    def _cancelled(self, connected: Deferred[IProtocol]) -> None:
        connector = self._connector
        if self._negotiation is not None:
            self._negotiation.cancel()
        elif connector is not None:
            connected.errback(ConnectingCancelledError(connector.getDestination()))
            connector.stopConnecting()

    def _failed(self, reason: Failure) -> None:
        connected = self._connected
        if connected is not None and not connected.called:
            connected.errback(reason)

    def _ended(self, result: IProtocol | Failure) -> IProtocol | Failure:
        """
        Release the use of the reactor if no negotiation has taken it.

        Breaking the cycle with the connector saves a third of the garbage collections of C{connects}. The TCP
        connection refers to this object as long as it lives: so drop the Deferred, too.
        """
        self._negotiation = self._connector = self._connected = None
        use, self._use = self._use, None
        if use is not None:
            use.release()
        return result

    # Methods of a client factory

    def startedConnecting(self, connector: IConnector) -> None:
        self._connector = connector

    def clientConnectionFailed(self, connector: IConnector, reason: Failure) -> None:
        self._failed(reason)

    def clientConnectionLost(self, connector: IConnector, reason: Failure) -> None:
        """Do nothing: the protocol handles the end of the TCP connection."""


@lru_cache(256)
def _outcomesAt(host: str, port: int) -> Outcomes:
    """Return the log of outcomes that all connections to this address share."""
    return Outcomes(f"connection to {host}:{port}")


def connect(
    reactor: Any, host: str, port: int, factory: IProtocolFactory, options: Options
) -> Deferred[IProtocol]:
    connecting = Connecting(factory, reactor, options, _outcomesAt(host, port))
    return connecting.toAddress(host, port) if isNumeric(host) else connecting.toName(host, port)
