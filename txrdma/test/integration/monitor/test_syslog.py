"""
Syslog over real sockets.
"""

from __future__ import annotations

import os
import re
import socket
import tempfile
from typing import Any

from twisted.internet import reactor as theReactor
from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionRefusedError
from twisted.internet.protocol import connectionDone, DatagramProtocol, Factory, Protocol
from twisted.python.failure import Failure
from twisted.trial.unittest import TestCase

from txrdma.error import DeviceUnavailable
from txrdma.monitor.events.syslog import SyslogChannel, SyslogSettings
from txrdma.test.support.monitor.alerts import alertsOf

reactor: Any = theReactor


class _Datagrams(DatagramProtocol):
    def __init__(self, wanted: int) -> None:
        self.received: list[bytes] = []
        self.complete: Deferred[list[bytes]] = Deferred()
        self._wanted = wanted

    def datagramReceived(self, datagram: bytes, addr: object) -> None:
        self.received.append(datagram)
        if len(self.received) == self._wanted:
            self.complete.callback(self.received)


class _Stream(Protocol):
    def connectionMade(self) -> None:
        self.received = b""

    def dataReceived(self, data: bytes) -> None:
        self.received += data

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        factory: Any = self.factory
        factory.complete.callback(self.received)


class SyslogTests(TestCase):
    """A syslog daemon on loopback."""

    async def test_udp(self) -> None:
        """Over UDP each alert is a datagram; the host has an address of either family."""
        for host, interface in (("127.0.0.1", "127.0.0.1"), ("[::1]", "::1")):
            receiver = _Datagrams(2)
            try:
                port = reactor.listenUDP(0, receiver, interface=interface)
            except Exception:  # a host without IPv6
                continue
            self.addCleanup(port.stopListening)
            settings = SyslogSettings(f"udp:{host}:{port.getHost().port}")
            await SyslogChannel(reactor, settings).send(alertsOf("leaf 1", "leaf 2"))
            for message, name in zip(await receiver.complete, (b"leaf 1", b"leaf 2"), strict=True):
                self.assertRegex(message, rb"^<28>1 .*" + name)

    async def test_tcp(self) -> None:
        """Over TCP the length precedes each message, and a closed port is a failure."""
        factory: Any = Factory.forProtocol(_Stream)
        factory.complete = Deferred()
        port = reactor.listenTCP(0, factory, interface="127.0.0.1")
        number = port.getHost().port
        channel = SyslogChannel(reactor, SyslogSettings(f"tcp:127.0.0.1:{number}"))
        await channel.send(alertsOf("leaf 1", "leaf \N{SNOWMAN}"))
        octets = await factory.complete
        for name in ("leaf 1", "leaf \N{SNOWMAN}"):
            match = re.match(rb"(\d+) ", octets)
            assert match is not None, octets
            end = match.end() + int(match[1])
            self.assertIn(name.encode(), octets[match.end() : end])
            octets = octets[end:]
        self.assertEqual(octets, b"")
        await port.stopListening()
        with self.assertRaises(ConnectionRefusedError):
            await channel.send(alertsOf("leaf 1"))

    async def test_unix(self) -> None:
        """The socket of this host gets datagrams; one that is full is a failure."""
        with (
            tempfile.TemporaryDirectory() as folder,
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as here,
        ):
            path = os.path.join(folder, "log")
            here.bind(path)
            channel = SyslogChannel(reactor, SyslogSettings(f"unix:{path}"))
            await channel.send(alertsOf("leaf 1"))
            self.assertRegex(here.recv(4096), rb"^<28>fabric-monitor\[\d+\]: warning width is there: leaf 1")
            with self.assertRaises(DeviceUnavailable):
                await channel.send(alertsOf(*map(str, range(5000))))

    async def test_missingSocket(self) -> None:
        """Without a daemon on this host, the alerts wait."""
        with tempfile.TemporaryDirectory() as folder:
            channel = SyslogChannel(reactor, SyslogSettings(f"unix:{folder}/log"))
            with self.assertRaises(DeviceUnavailable):
                await channel.send(alertsOf("leaf 1"))
