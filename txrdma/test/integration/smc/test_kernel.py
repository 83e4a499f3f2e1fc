"""
The kernel's SMC as a backend, without a kernel that has it: its status, its absence, and ends.
"""

from __future__ import annotations

import errno
import os
import socket
from typing import Any

from twisted.internet import main
from twisted.internet.endpoints import clientFromString, serverFromString
from twisted.internet.error import CannotListenError, ConnectBindError
from twisted.python.failure import Failure
from twisted.trial.unittest import TestCase

from txrdma.smc.group.groups import closeLinkGroups
from txrdma.smc.kernel import sockets, status, transports
from txrdma.smc.kernel.sockdiag import KernelSocket
from txrdma.test.support.smc.kernel import RECORDED
from txrdma.testing.endpoints import EndpointContract, reactor, StreamContract
from txrdma.testing.protocols import Recorders


class OwnEndpointTests(EndpointContract, TestCase):
    """The contract of endpoints with txrdma's own stack."""

    SERVER = "smc:127.0.0.1:0:backend=own"
    CLIENT = "smc:127.0.0.1:{port}:backend=own"
    PLAIN_SERVER = "tcp:0:interface=127.0.0.1"
    PLAIN_CLIENT = "tcp:127.0.0.1:{port}"
    timeout = 30

    def setUp(self) -> None:
        self.addCleanup(closeLinkGroups, reactor)


class StandInTests(StreamContract, TestCase):
    """
    Transports of the kernel's SMC on TCP sockets, which stand in for AF_SMC ones.

    The peer's buffer is reported as full while TCP has unsent bytes.
    """

    SERVER = "smc:127.0.0.1:0:backend=kernel"
    CLIENT = "smc:127.0.0.1:{port}:backend=kernel"
    PLAIN_SERVER = "tcp:0:interface=127.0.0.1"
    PLAIN_CLIENT = "tcp:127.0.0.1:{port}"
    timeout = 30

    def setUp(self) -> None:
        def stand(family: int) -> socket.socket:
            made = socket.socket(family, socket.SOCK_STREAM)
            made.setblocking(False)
            return made

        self.patch(transports, "smcSocket", stand)
        for module in (transports, status):
            self.patch(module, "hasFallenBack", lambda connected: False)
        reported = KernelSocket.decode(RECORDED["client"])
        self.patch(status._cache, "find", lambda inode: reported)

    async def test_threadSendsWhatPeersBufferHasNoSpaceFor(self) -> None:
        real = transports._closeInThread
        here, there = await self.pair()
        there.transport.pauseProducing()
        here.transport.write(bytes(1 << 20))
        self.patch(transports, "unsent", lambda connected: 1)
        left: list[socket.socket] = []
        self.patch(transports, "_closeInThread", left.append)
        here.transport.connectionLost(Failure(main.CONNECTION_LOST))
        [connected] = left
        self.assertGreaterEqual(connected.fileno(), 0)
        real(connected)
        there.transport.resumeProducing()
        await self.until(lambda: there.hasEnded)

    async def test_writesWhileClosingLeaveNoDelayedCall(self) -> None:
        """Bytes written after C{loseConnection}, while the kernel sends, cause no call after the end."""
        here, there = await self.pair()
        there.transport.pauseProducing()
        self.patch(transports, "unsent", lambda connected: 1)
        self.patch(transports, "_MAX_POLL", 60.0)
        transport = here.transport
        transport._delay = 50.0
        transport.loseConnection()
        await self.until(lambda: transport._poll is not None)
        first = transport._poll
        transport.write(b"more")
        await self.until(lambda: transport._poll is not first)
        self.assertFalse(first.active())
        transport.abortConnection()
        await self.until(lambda: here.lost is not None)
        self.assertFalse(transport._poll.active())

    async def test_socketErrorAbortsStream(self) -> None:
        here, there = await self.pair()

        class Reset:
            def getsockopt(self, *arguments: object) -> int:
                return errno.ECONNRESET

        transport = here.transport
        real, transport.socket = transport.socket, Reset()
        try:
            self.assertIs(transport._dataReceived(b""), main.CONNECTION_LOST)
        finally:
            transport.socket = real


class AbsenceTests(TestCase):
    """A kernel without SMC sockets."""

    def setUp(self) -> None:
        real = socket.socket

        def refuse(family: int = -1, *arguments: Any, **more: Any) -> socket.socket:
            if family == sockets.AF_SMC:
                raise OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT))
            return real(family, *arguments, **more)

        self.patch(socket, "socket", refuse)

    async def test_clientsErrorNamesRemedy(self) -> None:
        with self.assertRaises(ConnectBindError) as caught:
            await clientFromString(reactor, "smc:127.0.0.1:9:backend=kernel").connect(Recorders())
        self.assertIn("modprobe smc", str(caught.exception))

    async def test_serversErrorNamesRemedy(self) -> None:
        with self.assertRaises(CannotListenError) as caught:
            await serverFromString(reactor, "smc:127.0.0.1:0:backend=kernel").listen(Recorders())
        self.assertIn("modprobe smc", str(caught.exception))
