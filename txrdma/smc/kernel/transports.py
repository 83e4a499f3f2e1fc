"""
The kernel backend: Twisted's TCP transports on C{AF_SMC} sockets.

They differ from TCP when closing: the kernel blocks in close and shutdown until all bytes fit into the peer's
buffer. The transport therefore polls until they do before it closes the socket or its write side.
"""

from __future__ import annotations

import os
import socket
from functools import partial
from threading import Thread
from typing import Any, cast, Final

from zope.interface import implementer

from twisted.internet import main
from twisted.internet.defer import Deferred
from twisted.internet.error import getConnectError
from twisted.internet.interfaces import (
    IConnector,
    IDelayedCall,
    IListeningPort,
    IProtocol,
    IProtocolFactory,
    IReactorTime,
)
from twisted.internet.protocol import ClientFactory
from twisted.internet.tcp import Client, Connection, Connector, Port, Server
from twisted.python.failure import Failure

from txrdma.interfaces import ISMCTransport
from txrdma.kit.delayedcalls import cancelCall
from txrdma.kit.twistedprivate import require
from txrdma.smc.common.reactoruse import reactorUse, Use
from txrdma.smc.dialing import cancellable, endpointTo
from txrdma.smc.handshake.outcomes import NotSMC, Outcomes
from txrdma.smc.interfaces import ISMCBackend
from txrdma.smc.kernel.sockets import hasFallenBack, smcSocket, unsent
from txrdma.smc.kernel.status import KernelStatus
from txrdma.smc.signalling.owners import tcpAddressOf
from txrdma.smc.status import control
from txrdma.smc.status.report import report
from txrdma.smc.stream.connectionstatus import forget, logEnd, register
from txrdma.smc.terms.options import Options
from txrdma.smc.wire.clc import Diagnosis
from txrdma.smc.wrapping import AcceptingFactory, Build

require(__name__)

_MIN_POLL: Final = 1e-3
_MAX_POLL: Final = 0.1
"""Seconds between two polls for unsent bytes; the interval doubles each time up to the maximum."""


class EndpointPolicy:
    """The log of an endpoint's connections, and whether they may fall back to TCP (C{fallback})."""

    def __init__(self, name: str, fallback: bool) -> None:
        self.fallback = fallback
        self._outcomes = Outcomes(name)
        self._logged: set[bool] = set()

    def log(self, status: KernelStatus) -> None:
        """Log the first connection with SMC and the first with TCP; each needs a query of the kernel."""
        if status.isTCP not in self._logged:
            self._logged.add(status.isTCP)
            if status.isTCP:
                reason = status.fallbackReason or Diagnosis.PEERNOSMC
                self._outcomes.fellBack(reason, status.peerDiagnosis, self.fallback)
            else:
                self._outcomes.established(status.version, status.device, status.route)


def _closeInThread(connected: socket.socket) -> None:
    """Close a socket in a thread, because the kernel may block until the peer has read."""

    def close() -> None:
        try:
            connected.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        connected.close()

    Thread(target=close, name="smc-close", daemon=True).start()


@implementer(ISMCTransport)
class KernelConnection(Connection):
    """A connection on an SMC socket of the kernel, as a TCP transport of Twisted."""

    smc: KernelStatus
    _use: Use | None = None
    _poll: IDelayedCall | None = None
    _delay = _MIN_POLL

    def _established(self, role: str, policy: EndpointPolicy) -> None:
        self.smc = KernelStatus(self, role)
        self._use = reactorUse(self.reactor).hold()
        self._since = cast(IReactorTime, self.reactor).seconds()
        register(self)
        policy.log(self.smc)

    def _dataReceived(self, data: bytes | None) -> Any:
        """Detect a reset: for an aborted connection the kernel returns no data and sets SO_ERROR."""
        if not data and self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            return main.CONNECTION_LOST
        return super()._dataReceived(data)

    def _isSending(self) -> bool:
        """Return whether bytes do not fit into the peer's buffer yet. On TCP closing does not block."""
        try:
            return not hasFallenBack(self.socket) and unsent(self.socket) > 0
        except OSError:
            return False  # the connection is lost

    def _pollLater(self) -> None:
        """Schedule another C{doWrite}: the kernel has no event for unsent bytes."""
        cancelCall(self._poll)  # more bytes may have been written meanwhile
        self._poll = cast(IReactorTime, self.reactor).callLater(self._delay, self.startWriting)
        self._delay = min(2 * self._delay, _MAX_POLL)

    def _postLoseConnection(self) -> Any:
        if self._isSending():
            self._pollLater()
            return None
        return super()._postLoseConnection()  # type: ignore[no-untyped-call]  # Twisted's

    def _closeWriteConnection(self) -> None:
        if self._isSending():
            self._writeDisconnected = False  # doWrite has set it already
            self._pollLater()
        else:
            super()._closeWriteConnection()

    def _closeSocket(self, orderly: bool) -> None:
        if orderly and self._use is not None and self._isSending():
            _closeInThread(self.socket)
        else:
            super()._closeSocket(orderly)  # type: ignore[no-untyped-call]  # Twisted's

    def connectionLost(self, reason: Failure) -> None:
        cancelCall(self._poll)
        if self._use is not None:
            logEnd(self, reason, lambda: cast(IReactorTime, self.reactor).seconds() - self._since)
        forget(self)
        try:
            super().connectionLost(reason)
        finally:
            use, self._use = self._use, None
            if use is not None:
                use.release()


class KernelClient(KernelConnection, Client):
    """A client's connection."""

    connector: KernelConnector

    def createInternetSocket(self) -> socket.socket:
        return smcSocket(self.addressFamily)

    def connectionLost(self, reason: Failure) -> None:
        """Report the socket's error: unlike with TCP, a refused connection ends with an error event."""
        code = 0
        if not self.connected and hasattr(self, "socket"):
            code = self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            refusal = getConnectError((code, os.strerror(code)))
            self.failIfNotConnected(refusal)  # type: ignore[no-untyped-call]
        else:
            super().connectionLost(reason)

    def _connectDone(self) -> None:
        policy = self.connector.policy
        if hasFallenBack(self.socket) and not policy.fallback:
            status = KernelStatus(self, "client")
            policy.log(status)
            reason = status.fallbackReason or Diagnosis.PEERNOSMC
            self.failIfNotConnected(NotSMC(reason, status.peerDiagnosis))  # type: ignore[no-untyped-call]
            return
        self._established("client", policy)
        super()._connectDone()  # type: ignore[no-untyped-call]  # Twisted's


class KernelConnector(Connector):
    """Connects with L{KernelClient}, by the policy of an endpoint."""

    policy: EndpointPolicy

    def _makeTransport(self) -> Client:
        return KernelClient(  # type: ignore[no-untyped-call]  # Twisted's
            self.host, self.port, self.bindAddress, self, self.reactor
        )


class KernelServer(KernelConnection, Server):
    """An accepted connection."""

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
        self._established("server", server.policy)


class KernelPort(Port):
    """A listening port, with the policy of its connections."""

    transport = KernelServer  # type: ignore[assignment]  # Port declares Server
    policy: EndpointPolicy
    _use: Use | None = None

    def createInternetSocket(self) -> socket.socket:
        made = smcSocket(self.addressFamily)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        return made

    def startListening(self) -> None:
        """Listen; fail like TCP if the kernel has no SMC sockets."""
        super().startListening()
        self._use = reactorUse(self.reactor).hold()

    def connectionLost(self, reason: Failure) -> None:
        """Stop listening; connections are not affected."""
        use, self._use = self._use, None
        if use is not None:
            use.release()
        super().connectionLost(reason)  # type: ignore[no-untyped-call]  # Twisted's


class SMCOnly(AcceptingFactory):
    """Wraps the factory of a server that does not allow a fallback to TCP."""

    def connectionAccepted(self, transport: Connection, build: Build) -> None:
        """Connect the user's protocol, or close the connection if it has fallen back."""
        protocol = None if cast(KernelServer, transport).smc.isTCP else build()
        if protocol is None:
            transport.loseConnection()
            return
        transport.protocol = protocol
        protocol.makeConnection(cast(Any, transport))


def dial(
    reactor: Any,
    policy: EndpointPolicy,
    host: str,
    port: int,
    factory: ClientFactory[Any],
    timeout: float,
    bindAddress: Any,
) -> IConnector:
    connector = KernelConnector(host, port, factory, timeout, bindAddress, reactor)
    connector.policy = policy
    connector.connect()
    return cast(IConnector, connector)


def listen(
    reactor: Any, fallback: bool, port: int, factory: IProtocolFactory, backlog: int, interface: str
) -> Port:
    listening = KernelPort(port, factory if fallback else SMCOnly(factory), backlog, interface, reactor)
    listening.startListening()
    host = listening.getHost()  # type: ignore[no-untyped-call]  # Twisted's
    listening.policy = EndpointPolicy(f"connection at {tcpAddressOf(host)}", fallback)
    return listening


@implementer(ISMCBackend)
class KernelBackend:
    """Connects and listens with the kernel's SMC sockets."""

    def connect(
        self, reactor: Any, host: str, port: int, factory: IProtocolFactory, options: Options
    ) -> Deferred[IProtocol]:
        control.openStatusSocket(reactor, report)
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
        control.openStatusSocket(reactor, report)
        return cast(IListeningPort, listen(reactor, options.fallback, port, factory, backlog, interface))
