"""
Connections that are announced before they are made, and those that can't be announced, on the real reactor.
"""

from __future__ import annotations

import errno
import random
import socket
from typing import Any

from twisted.internet.defer import gatherResults
from twisted.internet.error import ConnectionRefusedError
from twisted.trial.unittest import SynchronousTestCase

from txrdma.smc.signalling import clientports, localsignal
from txrdma.smc.signalling.clientports import bindSomewhere
from txrdma.smc.signalling.dialing import DialedClient
from txrdma.smc.signalling.local import Announcements
from txrdma.smc.wire.clc import Diagnosis
from txrdma.test.support.smc.ends import EndsTestCase
from txrdma.testing.protocols import Echo


class TurnTests(EndsTestCase):
    """TCP connections to this host."""

    async def test_connectionWithinHostIsEstablishedInSameIteration(self) -> None:
        waiting = []
        self.patch(DialedClient, "startWriting", lambda client: waiting.append(client))
        for kind, mode in (("smc", "SMC-R"), ("tcp", "TCP")):
            _factory, port = await self.serve(f"{kind}:0:interface=127.0.0.1")
            client = await self.connect(f"smc:127.0.0.1:{port}")
            self.assertEqual((client.smc.mode, waiting), (mode, []))


class PortTests(SynchronousTestCase):
    """Local ports of clients that bind before they connect."""

    def bound(self, avoid: int = 0, isUnused: bool = False) -> socket.socket:
        sock = socket.socket()
        self.addCleanup(sock.close)
        bindSomewhere(sock, "127.0.0.1", avoid, isUnused)
        return sock

    def test_portsAreInClientRangeAndNotReserved(self) -> None:
        with open("/proc/sys/net/ipv4/ip_local_port_range") as file:
            low, high = map(int, file.read().split())
        ports, reserved = clientports._clientPorts()
        self.assertEqual((ports[0], ports[-1]), (low, high))
        address, port = self.bound().getsockname()
        self.assertEqual(address, "127.0.0.1")
        self.assertIn(port, ports)
        self.assertNotIn(port, reserved)

    def test_reservedAndDestinationPortsAreNotUsed(self) -> None:
        free = self.bound().getsockname()[1]
        for reserved, avoid in (({free}, 0), (set(), free)):
            self.patch(clientports, "_clientPorts", lambda r=reserved: (range(free, free + 1), frozenset(r)))
            self.assertNotEqual(self.bound(avoid).getsockname()[1], free)

    def test_unusedPortHasNoConnectionAndMayBeSharedLater(self) -> None:
        with socket.socket() as server, socket.socket() as other:
            for each in (server, other):
                each.bind(("127.0.0.1", 0))
                each.listen()
            client = self.bound()
            client.connect(server.getsockname())
            taken = client.getsockname()[1]
            self.patch(clientports, "_clientPorts", lambda: (range(taken, taken + 1), frozenset()))
            unused = self.bound(isUnused=True)
            self.assertNotEqual(unused.getsockname()[1], taken)
            unused.connect(server.getsockname())
            port = unused.getsockname()[1]
            self.patch(clientports, "_clientPorts", lambda: (range(port, port + 1), frozenset()))
            sharing = self.bound()
            self.assertEqual(sharing.getsockname()[1], port)
            sharing.connect(other.getsockname())

    def test_portIsSharedIfNoneIsUnused(self) -> None:
        class Crowded(socket.socket):
            """A socket of a host where each port has a connection."""

            def bind(self, address: Any) -> None:
                if not self.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR):
                    raise OSError(errno.EADDRINUSE, "Address already in use")
                super().bind(address)

        with Crowded() as sock:
            port = bindSomewhere(sock, "127.0.0.1", 0, isUnused=True)
            self.assertEqual(sock.getsockname(), ("127.0.0.1", port))

    def test_connectedPortMayBeUsedAndListenersMayNot(self) -> None:
        with socket.socket() as server, socket.socket() as listener:
            for each in (server, listener):
                each.bind(("127.0.0.1", 0))
                each.listen()
            client = self.bound()
            client.connect(server.getsockname())
            port = client.getsockname()[1]
            self.patch(clientports, "_clientPorts", lambda: (range(port, port + 1), frozenset()))
            self.assertEqual(self.bound().getsockname()[1], port)
            taken = listener.getsockname()[1]
            self.patch(clientports, "_clientPorts", lambda: (range(taken, taken + 1), frozenset()))
            self.assertNotEqual(self.bound().getsockname()[1], taken)


class DialTests(EndsTestCase):
    """Clients of a server that supports SMC."""

    async def check(self, port: int, mode: str, reason: Any = None) -> Any:
        """Connect, check the mode and an echo, and return the protocol."""
        protocol = await self.connect(f"smc:127.0.0.1:{port}")
        self.assertEqual((protocol.smc.mode, protocol.smc.fallbackReason), (mode, reason))
        protocol.transport.write(b"hello")
        self.assertEqual(await protocol.receiving(5), b"hello")
        return protocol

    async def test_drawnPortConnectedToSameServerIsReplacedByUnusedOne(self) -> None:
        _, port = await self.serve(kind=Echo)
        first = await self.check(port, "SMC-R")
        taken = first.transport.getHost().port
        self.patch(random, "choice", lambda ports: taken)
        second = await self.check(port, "SMC-R")
        self.assertNotEqual(second.transport.getHost().port, taken)

    async def test_unannouncedPlainTCPIfAllBoundPortsAreInUse(self) -> None:
        _, port = await self.serve(kind=Echo)
        first = await self.check(port, "SMC-R")
        taken: int = first.transport.getHost().port

        def bind(sock: socket.socket, host: str, avoid: int, isUnused: bool) -> int:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((host, taken))
            return taken

        self.patch(localsignal, "bindSomewhere", bind)
        await self.check(port, "TCP", Diagnosis.PEERNOSMC)

    async def test_plainTCPIfNoPortCanBeBound(self) -> None:
        def refuse(*arguments: object) -> None:
            raise OSError(errno.EADDRINUSE, "Address already in use")

        _, port = await self.serve(kind=Echo)
        self.patch(localsignal, "bindSomewhere", refuse)
        await self.check(port, "TCP", Diagnosis.PEERNOSMC)

    async def test_plainTCPIfListenerRefusesAnnouncement(self) -> None:
        _, port = await self.serve(kind=Echo)
        self.patch(Announcements, "expect", lambda *arguments: False)
        await self.check(port, "TCP", Diagnosis.PEERNOSMC)

    async def test_missingDescriptorMeansPlainTCPOnlyOnce(self) -> None:
        real = socket.socket

        def refuse(family: int = -1, *arguments: Any, **more: Any) -> socket.socket:
            if family == socket.AF_UNIX:
                raise OSError(errno.EMFILE, "Too many open files")
            return real(family, *arguments, **more)

        _, port = await self.serve(kind=Echo)
        patch = self.patch(socket, "socket", refuse)
        await self.check(port, "TCP", Diagnosis.PEERNOSMC)
        patch.restore()
        await self.check(port, "SMC-R")

    async def test_portWithoutListenerRefusesAsTCP(self) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
            for text in (f"smc:127.0.0.1:{port}", f"tcp:127.0.0.1:{port}"):
                error = await self.assertFailure(self.attempt(text), ConnectionRefusedError)
                self.assertEqual(error.osError, errno.ECONNREFUSED)

    async def test_twoHundredSimultaneousConnectionsUseSMC(self) -> None:
        factory, port = await self.serve("smc:127.0.0.1:0:backlog=500", kind=Echo)
        many = await gatherResults([self.attempt(f"smc:127.0.0.1:{port}") for _ in range(200)])
        self.assertEqual({each.smc.mode for each in many}, {"SMC-R"})
        for each in many:
            each.transport.write(b"hello")
        for each in many:
            self.assertEqual(await each.receiving(5), b"hello")
        for each in many:
            each.transport.loseConnection()
        for each in many:
            await each.lost
