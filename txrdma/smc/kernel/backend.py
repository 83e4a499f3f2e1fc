"""
The backend that uses C{AF_SMC} sockets of the Linux kernel instead of txrdma's own stack.
"""

from __future__ import annotations

from functools import partial
from typing import Any, cast

from zope.interface import implementer

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IListeningPort, IProtocol, IProtocolFactory

from txrdma.smc.dialing import cancellable, endpointTo
from txrdma.smc.interfaces import ISMCBackend
from txrdma.smc.kernel.transports import dial, EndpointPolicy, listen
from txrdma.smc.status import control as introspection
from txrdma.smc.status.report import report
from txrdma.smc.terms.options import Options


@implementer(ISMCBackend)
class KernelBackend:
    """Connects and listens with the kernel's SMC sockets."""

    def connect(
        self, reactor: Any, host: str, port: int, factory: IProtocolFactory, options: Options
    ) -> Deferred[IProtocol]:
        """
        Connect to a host and a port. The Deferred fires after the SMC handshake.

        Fails like TCP, with C{ConnectBindError} if the kernel has no SMC sockets, and with
        L{txrdma.smc.handshake.outcomes.NotSMC} if the connection fell back to TCP and that is not allowed.
        """
        introspection.appear(reactor, report)
        policy = EndpointPolicy(f"connection to {host}:{port}", options.fallback)
        endpoint = endpointTo(reactor, host, port, options, partial(dial, reactor, policy))
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
        Listen on a port.

        @param interface: a local address; empty for all interfaces.
        @raise CannotListenError: as for TCP, and if the kernel has no SMC sockets.
        """
        introspection.appear(reactor, report)
        return cast(IListeningPort, listen(reactor, options.fallback, port, factory, backlog, interface))
