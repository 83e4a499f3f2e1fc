"""
A client's connection by our own stack, from its beginning until the user's protocol is connected.

Addresses in numbers are connected to by this module itself: an endpoint of Twisted's for TCP would put a
factory, a protocol and Deferreds of its own between the TCP client and the handshake. Names are left to
C{HostnameEndpoint}, which may begin several TCP connections.
"""

from __future__ import annotations

from functools import partial
from typing import Any, cast

from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectingCancelledError
from twisted.internet.interfaces import IAddress, IConnector, IProtocol, IProtocolFactory
from twisted.python.failure import Failure

from txrdma.smc.common.reactoruse import reactorUse, Use
from txrdma.smc.dialing import bindingOf, cancellable, endpointTo, isNumeric, timeoutOf
from txrdma.smc.handshake.choice import carrierFor
from txrdma.smc.handshake.outcomes import Outcomes
from txrdma.smc.handshake.proposing import ClientNegotiation
from txrdma.smc.signalling.dialing import dial
from txrdma.smc.terms.options import Options
from txrdma.smc.wrapping import HandshakeFactory


class Connecting(HandshakeFactory):
    """Begins a handshake on each TCP connection of one call of an endpoint's C{connect}."""

    def __init__(self, wrapped: IProtocolFactory, reactor: Any, options: Options, where: str) -> None:
        super().__init__(wrapped)
        self._reactor = reactor
        self._options = options
        self._outcomes = Outcomes(where)
        # Not only from the TCP connection on: the last other one may end meanwhile, and link groups with it.
        self._use: Use | None = reactorUse(reactor).hold()
        self._connector: IConnector | None = None
        self._negotiation: ClientNegotiation | None = None
        self._connected: Deferred[IProtocol] | None = None

    def toAddress(self, host: str, port: int) -> Deferred[IProtocol]:
        """Connect to an IP address."""
        options = self._options
        carrier = carrierFor(self._reactor, options)
        connected: Deferred[IProtocol] = Deferred(self._cancelled)
        self._connected = connected.addBoth(self._ended)
        try:
            dial(self._reactor, carrier, host, port, cast(Any, self), timeoutOf(options), bindingOf(options))
        except Exception:
            self._failed(Failure())
        return connected

    def toName(self, name: str, port: int) -> Deferred[IProtocol]:
        """Connect to the first address of a host name that answers."""
        dialing = partial(dial, self._reactor, carrierFor(self._reactor, self._options))
        endpoint = endpointTo(self._reactor, name, port, self._options, dialing)
        found = cast("Deferred[ClientNegotiation]", endpoint.connect(self))
        finished: Deferred[IProtocol] = found.addCallback(lambda negotiation: negotiation.finished())
        return cancellable(finished.addBoth(self._ended), name, port)

    def buildProtocol(self, addr: IAddress | None) -> ClientNegotiation:
        """Build the protocol that negotiates SMC on a new TCP connection."""
        use, self._use = self._use, None  # where there are several addresses there may be another negotiation
        options, build = self._options, self.builder(addr)
        negotiation = ClientNegotiation(self._reactor, options, self._outcomes, build, use, self._connected)
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
        """Release the use of the reactor if no negotiation has taken it."""
        self._negotiation = None
        use, self._use = self._use, None
        if use is not None:
            use.release()
        return result

    # As TCP clients want it of a factory

    def startedConnecting(self, connector: IConnector) -> None:
        self._connector = connector

    def clientConnectionFailed(self, connector: IConnector, reason: Failure) -> None:
        self._failed(reason)

    def clientConnectionLost(self, connector: IConnector, reason: Failure) -> None:
        """Do nothing: the protocol handles the end of the TCP connection."""


def connect(
    reactor: Any, host: str, port: int, factory: IProtocolFactory, options: Options
) -> Deferred[IProtocol]:
    connecting = Connecting(factory, reactor, options, f"connection to {host}:{port}")
    return connecting.toAddress(host, port) if isNumeric(host) else connecting.toName(host, port)
