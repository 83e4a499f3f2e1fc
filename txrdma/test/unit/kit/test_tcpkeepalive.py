"""L{txrdma.kit.tcpkeepalive}: probes of idle connections."""

from __future__ import annotations

import socket
from typing import Any

from zope.interface import directlyProvides

from twisted.internet.interfaces import ITCPTransport
from twisted.internet.protocol import Factory
from twisted.internet.testing import StringTransport
from twisted.protocols.policies import ProtocolWrapper, WrappingFactory
from twisted.protocols.wire import Echo
from twisted.trial.unittest import SynchronousTestCase

from txrdma.kit.tcpkeepalive import keepAlive


class _Transport(StringTransport):
    """A transport with a socket of TCP."""

    def __init__(self, handle: socket.socket) -> None:
        super().__init__()
        self._handle = handle
        directlyProvides(self, ITCPTransport)

    def getHandle(self) -> socket.socket:
        return self._handle

    def setTcpKeepAlive(self, enabled: bool) -> None:
        self._handle.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, enabled)


class KeepAliveTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.handle = socket.socket()
        self.addCleanup(self.handle.close)
        self.transport = _Transport(self.handle)

    def options(self) -> list[int]:
        names = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
        values = [self.handle.getsockopt(socket.IPPROTO_TCP, name) for name in names]
        return [self.handle.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE), *values]

    def test_tcp(self) -> None:
        """A connection of TCP is probed when it is idle."""
        keepAlive(self.transport, 40, 15, 5)
        self.assertEqual(self.options(), [1, 40, 15, 5])

    def test_wrapped(self) -> None:
        """So is one with TLS, which wraps the transport."""
        wrapper: Any = ProtocolWrapper(WrappingFactory(Factory.forProtocol(Echo)), Echo())
        wrapper.makeConnection(self.transport)
        keepAlive(wrapper, 40, 15, 5)
        self.assertEqual(self.options(), [1, 40, 15, 5])

    def test_unix(self) -> None:
        """Transports of UNIX sockets provide C{ITCPTransport}, but have no such options."""
        near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self.addCleanup(near.close)
        self.addCleanup(far.close)
        keepAlive(_Transport(near), 40, 15, 5)
        self.assertEqual(near.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE), 1)

    def test_other(self) -> None:
        """Other transports have no keepalive."""
        keepAlive(StringTransport(), 40, 15, 5)
