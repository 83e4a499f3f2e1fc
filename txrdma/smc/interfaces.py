"""
The seam between C{smc:} endpoints and the stacks that speak SMC for them.
"""

from __future__ import annotations

from typing import Any

from zope.interface import Interface

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IListeningPort, IProtocol, IProtocolFactory

from txrdma.smc.terms.options import Options


class ISMCBackend(Interface):
    """
    A stack that speaks SMC: it makes stream connections, and falls back to TCP where the peer does not.

    Transports of its connections provide L{txrdma.interfaces.ISMCTransport} and C{ITCPTransport}.
    """

    def connect(
        reactor: Any, host: str, port: int, factory: IProtocolFactory, options: Options
    ) -> Deferred[IProtocol]:
        """
        Connect to a host and a port.

        @return: Fires with the connected protocol. Fails as TCP does, also when it is cancelled, at every
            stage, and with L{txrdma.smc.handshake.outcomes.NotSMC} where plain TCP would not do.
        """

    def listen(
        reactor: Any, port: int, interface: str, backlog: int, factory: IProtocolFactory, options: Options
    ) -> IListeningPort:
        """
        Listen on a port, of every interface when that is empty.

        @raise CannotListenError: as for TCP.
        """
