"""The interface between C{smc:} endpoints and the stacks that implement SMC."""

from __future__ import annotations

from typing import Any

from zope.interface import Interface

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IListeningPort, IProtocol, IProtocolFactory

from txrdma.smc.terms.options import Options


class ISMCBackend(Interface):
    """
    An SMC stack, which makes stream connections, and falls back to TCP if the peer does not support SMC.

    Transports of its connections provide L{txrdma.interfaces.ISMCTransport} and C{ITCPTransport}.
    """

    def connect(
        reactor: Any, host: str, port: int, factory: IProtocolFactory, options: Options
    ) -> Deferred[IProtocol]:
        """
        Connect to a host and a port.

        @return: a Deferred of the connected protocol. It fails like TCP, also if cancelled at any stage, and
            with L{txrdma.smc.handshake.outcomes.NotSMC} if plain TCP is not allowed.
        """

    def listen(
        reactor: Any, port: int, interface: str, backlog: int, factory: IProtocolFactory, options: Options
    ) -> IListeningPort:
        """
        Listen on a port of an interface; an empty C{interface} means all of them.

        @raise CannotListenError: as for TCP.
        """
