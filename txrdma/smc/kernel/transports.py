"""
Twisted's TCP transports on sockets of the kernel's SMC.

What they change is the end: a close, or the close of one half, first waits on the reactor until the peer's
buffer has all bytes, since in the kernel it would wait for that and hold up everybody else.
"""

from __future__ import annotations

import os
import socket
from threading import Thread
from typing import Any, cast, Final

from zope.interface import implementer

from twisted.internet import main
from twisted.internet.error import getConnectError
from twisted.internet.interfaces import IConnector, IDelayedCall, IProtocolFactory, IReactorTime
from twisted.internet.protocol import ClientFactory
from twisted.internet.tcp import Client, Connection, Connector, Port, Server
from twisted.python.failure import Failure

from txrdma.interfaces import ISMCTransport
from txrdma.smc.common.reactoruse import reactorUse, Use
from txrdma.smc.handshake.outcomes import NotSMC, Outcomes
from txrdma.smc.kernel.sockets import hasFallenBack, smcSocket, unsent
from txrdma.smc.kernel.status import KernelStatus
from txrdma.smc.signalling.owners import placeOf
from txrdma.smc.stream.connectionstatus import forget, register
from txrdma.smc.wire.clc import Diagnosis
from txrdma.smc.wrapping import AcceptingFactory, Build

_FIRST: Final = 1e-3
_LONGEST: Final = 0.1
"""Seconds between two looks whether the peer's buffer has all bytes: twice as many each time, up to these."""


class Terms:
    """The terms and the log of an endpoint, for all its connections."""

    def __init__(self, where: str, fallback: bool) -> None:
        """
        @param where: which connections, for the log.
        @param fallback: whether plain TCP will do.
        """
        self.fallback = fallback
        self._outcomes = Outcomes(where)
        self._told: set[bool] = set()

    def tell(self, status: KernelStatus) -> None:
        """Log what became of a connection, the first of each kind: more would ask the kernel too often."""
        if status.isTCP not in self._told:
            self._told.add(status.isTCP)
            if status.isTCP:
                reason = status.fallbackReason or Diagnosis.PEERNOSMC
                self._outcomes.fellBack(reason, status.peerDiagnosis, self.fallback)
            else:
                self._outcomes.established(status.version, status.device, status.route)


def _closeLater(connected: socket.socket) -> None:
    """Close a socket in a thread, where the kernel may wait for the peer."""

    def close() -> None:
        try:
            connected.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        connected.close()

    Thread(target=close, name="smc-close", daemon=True).start()


@implementer(ISMCTransport)
class KernelConnection(Connection):
    """
    A connection of the kernel's SMC, in Twisted's clothes for TCP.

    @ivar smc: see L{ISMCTransport}.
    """

    smc: KernelStatus
    _use: Use | None = None
    _waiting: IDelayedCall | None = None
    _delay = _FIRST

    def _established(self, role: str, terms: Terms) -> None:
        self.smc = KernelStatus(self, role)
        self._use = reactorUse(self.reactor).hold()
        register(self)
        terms.tell(self.smc)

    def _dataReceived(self, data: bytes | None) -> Any:
        """The end of the stream may be that of an aborted connection: the socket has an error then."""
        if not data and self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            return main.CONNECTION_LOST
        return super()._dataReceived(data)

    def _isSending(self) -> bool:
        """Whether the kernel has bytes for which the peer's buffer had no room; TCP keeps them by itself."""
        try:
            return not hasFallenBack(self.socket) and unsent(self.socket) > 0
        except OSError:
            return False  # the connection is gone, and its bytes with it

    def _lookAgain(self) -> None:
        """Have C{doWrite} called again in a while: no descriptor tells that all is sent."""
        self._waiting = cast(IReactorTime, self.reactor).callLater(self._delay, self.startWriting)
        self._delay = min(2 * self._delay, _LONGEST)

    def _postLoseConnection(self) -> Any:
        if self._isSending():
            self._lookAgain()
            return None
        return super()._postLoseConnection()  # type: ignore[no-untyped-call]  # Twisted's

    def _closeWriteConnection(self) -> None:
        if self._isSending():
            self._writeDisconnected = False  # doWrite has said so already
            self._lookAgain()
        else:
            super()._closeWriteConnection()

    def _closeSocket(self, orderly: bool) -> None:
        if orderly and self._use is not None and self._isSending():
            _closeLater(self.socket)
        else:
            super()._closeSocket(orderly)  # type: ignore[no-untyped-call]  # Twisted's

    def connectionLost(self, reason: Failure) -> None:
        """Lose the connection, as L{twisted.internet.tcp.Connection} does."""
        waiting, self._waiting = self._waiting, None
        if waiting is not None and waiting.active():
            waiting.cancel()
        forget(self)
        try:
            super().connectionLost(reason)
        finally:
            use, self._use = self._use, None
            if use is not None:
                use.release()


class KernelClient(KernelConnection, Client):
    """The client's end of a connection of the kernel's SMC."""

    connector: KernelConnector

    def createInternetSocket(self) -> socket.socket:
        """Make a socket that is going to connect."""
        return smcSocket(self.addressFamily)

    def connectionLost(self, reason: Failure) -> None:
        """Lose the connection; a refused socket is not readable, as those of TCP are, but it says why."""
        code = 0
        if not self.connected and hasattr(self, "socket"):
            code = self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            refusal = getConnectError((code, os.strerror(code)))
            self.failIfNotConnected(refusal)  # type: ignore[no-untyped-call]
        else:
            super().connectionLost(reason)

    def _connectDone(self) -> None:
        terms = self.connector.terms
        if hasFallenBack(self.socket) and not terms.fallback:
            status = KernelStatus(self, "client")
            terms.tell(status)
            reason = status.fallbackReason or Diagnosis.PEERNOSMC
            self.failIfNotConnected(NotSMC(reason, status.peerDiagnosis))  # type: ignore[no-untyped-call]
            return
        self._established("client", terms)
        super()._connectDone()  # type: ignore[no-untyped-call]  # Twisted's


class KernelConnector(Connector):
    """
    Makes L{KernelClient}s, which connect by the kernel's SMC.

    @ivar terms: what the connections of its endpoint have in common.
    """

    terms: Terms

    def _makeTransport(self) -> Client:
        return KernelClient(  # type: ignore[no-untyped-call]  # Twisted's
            self.host, self.port, self.bindAddress, self, self.reactor
        )


class KernelServer(KernelConnection, Server):
    """The server's end of a connection of the kernel's SMC."""

    def __init__(
        self,
        sock: socket.socket,
        protocol: Any,
        client: Any,
        server: KernelPort,
        sessionno: int,
        reactor: Any,
    ) -> None:
        super().__init__(sock, protocol, client, server, sessionno, reactor)
        self._established("server", server.terms)


class KernelPort(Port):
    """
    A port whose connections are those of the kernel's SMC.

    @ivar terms: what these have in common.
    """

    transport = KernelServer  # type: ignore[assignment]  # Port says Server itself
    terms: Terms
    _use: Use | None = None

    def createInternetSocket(self) -> socket.socket:
        """Make a socket that is going to listen."""
        made = smcSocket(self.addressFamily)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        return made

    def startListening(self) -> None:
        """Listen, and fail as TCP does; the error names what the kernel lacks."""
        super().startListening()
        self._use = reactorUse(self.reactor).hold()

    def connectionLost(self, reason: Failure) -> None:
        """Listen no more; connections stay as they are."""
        use, self._use = self._use, None
        if use is not None:
            use.release()
        super().connectionLost(reason)  # type: ignore[no-untyped-call]  # Twisted's


class SMCOnly(AcceptingFactory):
    """Stands before the factory of a server for which plain TCP will not do."""

    def connectionAccepted(self, transport: Connection, build: Build) -> None:
        """Give the connection to the user's protocol, or close it when it has fallen back."""
        protocol = None if cast(KernelServer, transport).smc.isTCP else build()
        if protocol is None:
            transport.loseConnection()
            return
        transport.protocol = protocol
        protocol.makeConnection(cast(Any, transport))


def dial(
    reactor: Any,
    terms: Terms,
    host: str,
    port: int,
    factory: ClientFactory[Any],
    timeout: float,
    bindAddress: Any,
) -> IConnector:
    """Connect as C{connectTCP} of the reactor does, by the kernel's SMC."""
    connector = KernelConnector(host, port, factory, timeout, bindAddress, reactor)
    connector.terms = terms
    connector.connect()
    return cast(IConnector, connector)


def listen(
    reactor: Any, fallback: bool, port: int, factory: IProtocolFactory, backlog: int, interface: str
) -> Port:
    """Listen as C{listenTCP} of the reactor does, by the kernel's SMC."""
    listening = KernelPort(port, factory if fallback else SMCOnly(factory), backlog, interface, reactor)
    listening.startListening()
    host = listening.getHost()  # type: ignore[no-untyped-call]  # Twisted's
    listening.terms = Terms(f"connection at {placeOf(host)}", fallback)
    return listening
