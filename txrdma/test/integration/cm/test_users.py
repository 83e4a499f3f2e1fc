"""Listeners of a process whose user changes before its reactor runs, as C{twistd --uid} does."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast, Final
from unittest.mock import Mock, patch

from twisted.internet.endpoints import clientFromString, serverFromString
from twisted.internet.interfaces import IListeningPort
from twisted.internet.protocol import Factory
from twisted.logger import capturedLogs, formatEvent, LogLevel
from twisted.trial.unittest import SynchronousTestCase

from txrdma.cm.connections.adapter import adapterOf
from txrdma.cm.connections.datagrams import DatagramProtocol
from txrdma.cm.layouts.ipcm import PortSpace, serviceIDOf
from txrdma.iba.types import ROCE_PORT
from txrdma.soft.host.names import hostName
from txrdma.test.support.processes import loopbackAddress
from txrdma.testing.reactors import RealTime

OTHER: Final = 4321
"""The user ID that the patched process reports."""


class OtherUserTests(RealTime, SynchronousTestCase):
    """Two listeners share a device, whose names in the host contain the user."""

    def setUp(self) -> None:
        self.createReactor()
        self.address = loopbackAddress()
        self.user = os.geteuid()
        self.ports = [self.listen(), self.listen()]
        self.hosts = [port.getHost() for port in self.ports]
        self.addCleanup(self.stop)

    def stop(self) -> None:
        for port in self.ports:
            port.stopListening()
        self.runUntil(lambda: not self.users())

    def listen(self) -> IListeningPort:
        endpoint: Any = serverFromString(self.reactor, rf"rsocket:0:device=soft\:{self.address}")
        port: IListeningPort = self.successResultOf(endpoint.listen(Factory()))
        return port

    def names(self) -> list[str]:
        """Return the lines of sockets at the test's address: kernel address, inode and name."""
        return [each for each in Path("/proc/net/unix").read_text().splitlines() if self.address in each]

    def users(self) -> list[int]:
        """Return the users in the names of these sockets."""
        return [int(each.split("@txrdma/")[1].split("/")[1]) for each in self.names()]

    def services(self) -> int:
        """Return the number of ports at the test's address that programs listen to."""
        return sum(f"{self.address}/service" in each for each in self.names())

    def startAsOther(self) -> None:
        """Change the user, and let the reactor report that it starts."""
        self.patch(os, "geteuid", lambda: OTHER)
        self.reactor.fireSystemEvent("startup")

    def errors(self, start: Callable[[], None]) -> list[str]:
        """Start the reactor, and return the errors that are logged, each in one line."""
        with capturedLogs() as logged:
            start()
        errors = [event for event in logged if event["log_level"] >= LogLevel.error]
        self.assertNotIn(True, ["log_failure" in event for event in errors])
        return [formatEvent(event) for event in errors]

    def test_other(self) -> None:
        """When the reactor starts, both listen on a device of the new user, to the same ports."""
        names = self.users()
        self.assertEqual(set(names), {self.user})
        self.startAsOther()
        self.assertEqual(self.users(), [OTHER] * len(names))
        self.assertEqual([port.getHost() for port in self.ports], self.hosts)

    def test_client(self) -> None:
        """A client that opens the device after the change of the user, before the start, has the new user."""
        names = self.users()
        self.patch(os, "geteuid", lambda: OTHER)
        string = rf"rsocket:{self.address}:1:device=soft\:{self.address}"
        endpoint: Any = clientFromString(self.reactor, string)
        connecting = endpoint.connect(Factory())
        connecting.addErrback(lambda failure: None)
        self.addCleanup(connecting.cancel)
        self.assertEqual(set(self.users()), {OTHER})
        self.reactor.fireSystemEvent("startup")
        self.assertEqual(self.users(), [OTHER] * len(names))

    def test_temporary(self) -> None:
        """A change of the user after the reactor has started closes no listener."""
        names = self.names()
        self.reactor.fireSystemEvent("startup")
        self.patch(os, "geteuid", lambda: OTHER)
        port = self.listen()
        self.assertLessEqual(set(names), set(self.names()))
        port.stopListening()

    def serve(self) -> tuple[Any, Any]:
        """Start a datagram service; return its port and its protocol, which records its calls."""
        endpoint: Any = serverFromString(self.reactor, rf"sidr:0:device=soft\:{self.address}")
        protocol: Any = DatagramProtocol()
        protocol.startProtocol, protocol.stopProtocol = Mock(), Mock()
        factory: Any = Factory()
        factory.buildProtocol = lambda address: protocol
        service = self.successResultOf(endpoint.listen(factory))
        self.addCleanup(service.stopListening)
        return service, protocol

    def test_datagrams(self) -> None:
        """A datagram service that shares the device has the new one, too, and its protocol is restarted."""
        service, protocol = self.serve()
        names, host, former = self.users(), service.getHost(), protocol.transport
        self.startAsOther()
        self.assertEqual(self.users(), [OTHER] * len(names))
        self.assertEqual(service.getHost(), host)
        self.assertEqual((former.isOpen, protocol.transport.isOpen), (False, True))
        self.assertEqual((protocol.stopProtocol.call_count, protocol.startProtocol.call_count), (1, 2))

    def test_endedService(self) -> None:
        """A datagram service that has ended before is not restarted."""
        for end in (lambda port: port.stopListening(), lambda port: port._transport.loseConnection()):
            service, protocol = self.serve()
            end(service)
        before = self.services()
        self.startAsOther()
        self.assertEqual(self.services(), before)
        self.assertFalse(protocol.transport.isOpen)

    def test_connectionKeepsDevice(self) -> None:
        """Listeners and services whose device is otherwise in use are closed, which is logged."""
        self.serve()
        release = adapterOf(self.reactor, f"soft:{self.address}").hold()
        before = self.services()
        logged = self.errors(self.startAsOther)
        self.assertEqual(len(logged), len(self.ports) + 1)
        self.assertIn("in use as the former user", logged[0])
        self.assertEqual(self.services(), before - len(self.ports) - 1)
        release()

    def test_same(self) -> None:
        """If the user does not change, the device stays open."""
        names = self.names()
        self.reactor.fireSystemEvent("startup")
        self.assertEqual(self.names(), names)

    def test_stopped(self) -> None:
        """A listener that was stopped before does not listen again."""
        self.ports[0].stopListening()
        self.startAsOther()
        self.assertEqual(self.services(), 1)

    def test_portOfFormerUser(self) -> None:
        """Listeners at an address whose UDP port another user has are closed, which is logged in one line."""
        bind = socket.socket.bind

        def refuse(sock: socket.socket, address: Any) -> None:
            if address == (self.address, ROCE_PORT):
                raise OSError(errno.EADDRINUSE, "Address already in use")
            bind(sock, address)

        self.patch(socket.socket, "bind", refuse)
        logged = self.errors(self.startAsOther)
        self.assertEqual(len(logged), len(self.ports))
        for each in logged:
            self.assertIn(f"can't listen as user {OTHER}: UDP port 4791 of {self.address}", each)
            self.assertIn("those of another user need another address", each)

    def test_impossible(self) -> None:
        """A listener whose port belongs to another program of the new user is closed, which is logged."""
        number = serviceIDOf(PortSpace.TCP, cast(Any, self.hosts[0]).port)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as other:
            with patch.object(os, "geteuid", lambda: OTHER):
                other.bind(hostName(self.address, "service", f"{number:#x}"))
            [error] = self.errors(self.startAsOther)
        self.assertIn("in use by another program", error)
        self.assertEqual(self.services(), 1)
