"""
SMC-R for programs that call C{listenTCP} and C{connectTCP}, and for all functions that use these.

Endpoints, C{listenSSL}, C{twisted.application.strports} and C{ClientCreator} end at these two methods of the
reactor, so a program for TCP runs unchanged::

    python -m txrdma.test.system.foreign.everywhere MODULE [ARGUMENT ...]
"""

from __future__ import annotations

import runpy
import socket
import sys
from collections.abc import Callable, Sequence
from typing import Any

from zope.interface import implementer

from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred
from twisted.internet.error import (
    ConnectionDone,
    NoProtocol,
    NotConnectingError,
    ServiceNameUnknownError,
    UserError,
)
from twisted.internet.interfaces import IAddress, IConnector, IListeningPort, IProtocol
from twisted.internet.posixbase import PosixReactorBase
from twisted.internet.protocol import Factory
from twisted.python.failure import Failure

from txrdma.smc.endpoints import SMCClientEndpoint, SMCServerEndpoint
from txrdma.smc.terms.options import Options


class _Building(Factory):
    """Makes the protocol of a connector, which starts and stops the user's factory itself."""

    noisy = False

    def __init__(self, build: Callable[[IAddress | None], IProtocol | None]) -> None:
        self.buildProtocol = build  # type: ignore[method-assign,assignment]  # None is what TCP's factories may answer


@implementer(IConnector)
class SMCConnector:
    """
    A client endpoint with the interface of the connector that C{connectTCP} returns.

    @ivar state: C{disconnected}, C{connecting} or C{connected}.
    @ivar transport: the connection's transport while there is one.
    """

    def __init__(self, reactor: Any, host: str, port: int | str, factory: Any, options: Options) -> None:
        if isinstance(port, str):
            try:
                port = socket.getservbyname(port, "tcp")
            except OSError as error:
                raise ServiceNameUnknownError(string=f"{error} ({port!r})") from error
        self.state = "disconnected"
        self.transport: Any = None
        self.host, self.port = host, port
        self.factory = factory
        self._reactor = reactor
        self._endpoint = SMCClientEndpoint(reactor, host, port, options)
        self._isStarted = False
        self._connecting: Deferred[IProtocol] | None = None

    def connect(self) -> None:
        if self.state != "disconnected":
            raise RuntimeError("can't connect in this state")
        self.state = "connecting"
        if not self._isStarted:
            self.factory.doStart()
            self._isStarted = True
        connecting = self._endpoint.connect(_Building(self._build))
        self._connecting = connecting
        self.factory.startedConnecting(self)
        connecting.addCallbacks(self._connected, self._failed, errbackArgs=(connecting,))

    def stopConnecting(self) -> None:
        if self.state != "connecting":
            raise NotConnectingError("we're not trying to connect")
        connecting, self._connecting = self._connecting, None
        self._over(self.factory.clientConnectionFailed, Failure(UserError()))
        if connecting is not None:
            connecting.cancel()

    def disconnect(self) -> None:
        """See L{IConnector}."""
        if self.state == "connecting":
            self.stopConnecting()
        elif self.state == "connected" and self.transport is not None:
            self.transport.loseConnection()

    def getDestination(self) -> IAddress:
        """See L{IConnector}."""
        return IPv4Address("TCP", self.host, self.port)

    def _build(self, address: IAddress | None) -> IProtocol | None:
        """Create the user's protocol; the connector handles its end."""
        self.state = "connected"
        protocol = self.factory.buildProtocol(address)
        if protocol is None:
            return None
        made, lost = protocol.makeConnection, protocol.connectionLost

        def makeConnection(transport: Any) -> None:
            self.transport = transport
            del protocol.makeConnection
            made(transport)

        def connectionLost(reason: Failure) -> None:
            del protocol.connectionLost
            try:
                lost(reason)
            finally:
                self.transport = None
                self._over(self.factory.clientConnectionLost, reason)

        protocol.makeConnection, protocol.connectionLost = makeConnection, connectionLost
        return protocol  # type: ignore[no-any-return]  # the user's

    def _connected(self, _: IProtocol) -> None:
        self._connecting = None

    def _failed(self, reason: Failure, connecting: Deferred[IProtocol]) -> None:
        if self._connecting is not connecting:
            return  # stopped
        self._connecting = None
        if reason.check(NoProtocol):
            self._over(self.factory.clientConnectionLost, Failure(ConnectionDone()))
        elif self.state == "connecting":
            self._over(self.factory.clientConnectionFailed, reason)

    def _over(self, report: Callable[[SMCConnector, Failure], object], reason: Failure) -> None:
        self.state = "disconnected"
        report(self, reason)
        if self.state == "disconnected" and self._isStarted:  # the callback may have connected again
            self.factory.doStop()
            self._isStarted = False


def install() -> None:
    """Replace C{listenTCP} and C{connectTCP} of every reactor of this process by SMC-R."""
    listenTCP, spawnProcess = PosixReactorBase.listenTCP, PosixReactorBase.spawnProcess
    within: list[object] = []

    def listen(
        reactor: Any, port: int, factory: Any, backlog: int = 50, interface: str = ""
    ) -> IListeningPort:
        if within:  # the endpoint of txrdma listens by TCP, too
            return listenTCP(reactor, port, factory, backlog, interface)  # type: ignore[no-any-return]
        results: list[IListeningPort | Failure] = []
        within.append(reactor)
        try:
            SMCServerEndpoint(reactor, port, interface, backlog).listen(factory).addBoth(results.append)
        finally:
            within.pop()
        [result] = results  # the Deferred has fired already
        if isinstance(result, Failure):
            result.raiseException()
        return result

    def connect(
        reactor: Any, host: str, port: int, factory: Any, timeout: float = 30, bindAddress: Any = None
    ) -> IConnector:
        address, number = bindAddress if isinstance(bindAddress, tuple) else (bindAddress, 0)
        if number:
            raise NotImplementedError("the local port of a client cannot be chosen")
        options = Options(timeout=timeout, bindAddress=address)
        connector = SMCConnector(reactor, host, port, factory, options)
        connector.connect()
        return connector

    def spawn(reactor: Any, protocol: Any, executable: Any, args: Any = (), *more: Any, **keys: Any) -> Any:
        """Run modules over SMC-R even if they are started as programs."""
        if list(args[:2]) == [sys.executable, "-m"]:
            args = [*args[:2], __spec__.name, *args[2:]]
        return spawnProcess(reactor, protocol, executable, args, *more, **keys)

    PosixReactorBase.listenTCP = listen  # type: ignore[method-assign]
    PosixReactorBase.connectTCP = connect  # type: ignore[method-assign,assignment]
    PosixReactorBase.spawnProcess = spawn  # type: ignore[method-assign,assignment]


def main(arguments: Sequence[str]) -> None:
    """Run a module as C{python -m} does, over SMC-R."""
    install()
    sys.argv[:] = list(arguments)
    runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1:])
