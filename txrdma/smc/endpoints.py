"""Endpoints that use SMC-R if the peer supports it, and TCP otherwise."""

from __future__ import annotations

from typing import Any

from zope.interface import implementer

from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.interfaces import (
    IListeningPort,
    IProtocol,
    IProtocolFactory,
    IStreamClientEndpoint,
    IStreamServerEndpoint,
)

from txrdma.kit.strings import checkAddress
from txrdma.smc.interfaces import ISMCBackend
from txrdma.smc.terms.options import Options, USUAL
from txrdma.smc.userspace import UserspaceBackend

__all__ = ["SMCClientEndpoint", "SMCServerEndpoint"]


def backendNamed(name: str) -> ISMCBackend:
    """Return the backend for a value of the endpoint key C{backend=}."""
    if name == "kernel":
        from txrdma.smc.kernel.transports import KernelBackend  # rarely used

        return KernelBackend()
    return UserspaceBackend()


@implementer(IStreamClientEndpoint)
class SMCClientEndpoint:
    """Connects to a host and port, by SMC-R if possible."""

    def __init__(self, reactor: Any, host: str, port: int, options: Options = USUAL) -> None:
        checkAddress(host, 0 if isinstance(port, str) else port)  # TCP takes the names of services, too
        self._reactor = reactor
        self._host = host
        self._port = port
        self._options = options

    def connect(self, protocolFactory: IProtocolFactory) -> Deferred[IProtocol]:
        backend = backendNamed(self._options.backend)
        return backend.connect(self._reactor, self._host, self._port, protocolFactory, self._options)

    def __repr__(self) -> str:
        return f"<SMCClientEndpoint {self._host}:{self._port}>"


@implementer(IStreamServerEndpoint)
class SMCServerEndpoint:
    """Listens on a TCP port, and uses SMC-R with clients that support it."""

    def __init__(
        self, reactor: Any, port: int, interface: str = "", backlog: int = 50, options: Options = USUAL
    ) -> None:
        self._reactor = reactor
        self._port = port
        self._interface = interface
        self._backlog = backlog
        self._options = options

    def listen(self, protocolFactory: IProtocolFactory) -> Deferred[IListeningPort]:
        backend, options = backendNamed(self._options.backend), self._options
        return maybeDeferred(
            backend.listen,
            self._reactor,
            self._port,
            self._interface,
            self._backlog,
            protocolFactory,
            options,
        )
