"""
The kernel's SMC as a backend: sockets of C{AF_SMC}, where Linux does what our own stack does else.
"""

from __future__ import annotations

from functools import partial
from typing import Any, cast

from zope.interface import implementer

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IListeningPort, IProtocol, IProtocolFactory

from txrdma.smc.dialing import cancellable, endpointTo
from txrdma.smc.interfaces import ISMCBackend
from txrdma.smc.kernel.transports import dial, listen, Terms
from txrdma.smc.status import control as introspection
from txrdma.smc.status.report import report
from txrdma.smc.terms.options import Options


@implementer(ISMCBackend)
class KernelBackend:
    """Connects and listens by the kernel's SMC."""

    def connect(
        self, reactor: Any, host: str, port: int, factory: IProtocolFactory, options: Options
    ) -> Deferred[IProtocol]:
        """
        Connect to a host and a port; the handshake is over, too, when the protocol is there.

        Fails as TCP does, with C{ConnectBindError} where the kernel has no SMC sockets, and with
        L{txrdma.smc.handshake.outcomes.NotSMC} where plain TCP would not do.
        """
        introspection.appear(reactor, report)
        terms = Terms(f"connection to {host}:{port}", options.fallback)
        endpoint = endpointTo(reactor, host, port, options, partial(dial, reactor, terms))
        return cancellable(endpoint.connect(factory), host, port)

    def listen(
        self,
        reactor: Any,
        port: int,
        interface: str,
        backlog: int,
        factory: IProtocolFactory,
        options: Options,
    ) -> IListeningPort:
        """
        Listen on a port, of every interface when that is empty.

        @raise CannotListenError: as for TCP, and where the kernel has no SMC sockets.
        """
        introspection.appear(reactor, report)
        return cast(IListeningPort, listen(reactor, options.fallback, port, factory, backlog, interface))
