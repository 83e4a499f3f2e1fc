"""Syslog over real sockets."""

from __future__ import annotations

import os
import re
import socket
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from twisted.internet import reactor as theReactor
from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionRefusedError
from twisted.internet.protocol import connectionDone, DatagramProtocol, Factory, Protocol
from twisted.python.failure import Failure
from twisted.trial.unittest import SkipTest, TestCase

from txrdma.error import DeviceUnavailable
from txrdma.monitor.events import syslog
from txrdma.monitor.events.syslog import SyslogChannel, SyslogSettings
from txrdma.test.support.monitor.alerts import alertsOf
from txrdma.testing.streams.certificate import makeCertificate

reactor: Any = theReactor


class _Refusing(Factory):
    def buildProtocol(self, addr: object) -> None:
        """Close the connection."""


def hasIPv6() -> bool:
    """Return whether this host has the loopback address of IPv6."""
    if not socket.has_ipv6:
        return False
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as probe:
        return probe.connect_ex(("::1", 9)) == 0


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
            if interface == "::1" and not hasIPv6():
                continue
            receiver = _Datagrams(2)
            port = reactor.listenUDP(0, receiver, interface=interface)
            self.addCleanup(port.stopListening)
            settings = SyslogSettings(f"udp:{host}:{port.getHost().port}")
            await SyslogChannel(reactor, settings).send(alertsOf("leaf 1", "leaf 2"))
            for message, name in zip(await receiver.complete, (b"leaf 1", b"leaf 2"), strict=True):
                self.assertRegex(message, rb"^<28>1 .*" + name)

    def setUp(self) -> None:
        self.patch(syslog, "LINGER_SECONDS", 0.05)

    def assertFramed(self, octets: bytes, *names: str) -> None:
        """Assert that octets are messages about these nodes, each after its length."""
        for name in names:
            match = re.match(rb"(\d+) ", octets)
            assert match is not None, octets
            end = match.end() + int(match[1])
            self.assertIn(name.encode(), octets[match.end() : end])
            octets = octets[end:]
        self.assertEqual(octets, b"")

    async def test_tcp(self) -> None:
        """Over TCP, of either family, the length precedes each message, and a closed port is a failure."""
        for host, interface in (("127.0.0.1", "127.0.0.1"), ("[::1]", "::1")):
            if interface == "::1" and not hasIPv6():
                continue
            factory: Any = Factory.forProtocol(_Stream)
            factory.complete = Deferred()
            port = reactor.listenTCP(0, factory, interface=interface)
            channel = SyslogChannel(reactor, SyslogSettings(f"tcp:{host}:{port.getHost().port}"))
            await channel.send(alertsOf("leaf 1", "leaf \N{SNOWMAN}"))
            self.assertFramed(await factory.complete, "leaf 1", "leaf \N{SNOWMAN}")
            await port.stopListening()
            with self.assertRaises(ConnectionRefusedError):
                await channel.send(alertsOf("leaf 1"))

    async def test_closed(self) -> None:
        """A daemon that accepts a connection and closes it has not got the messages."""
        port = reactor.listenTCP(0, _Refusing(), interface="127.0.0.1")
        self.addCleanup(port.stopListening)
        self.patch(syslog, "LINGER_SECONDS", 30.0)
        channel = SyslogChannel(reactor, SyslogSettings(f"tcp:127.0.0.1:{port.getHost().port}"))
        with self.assertRaises(DeviceUnavailable):
            await channel.send(alertsOf("leaf 1"))

    async def test_tls(self) -> None:
        """With TLS, alerts wait until both ends have the certificates that the other one requires."""
        if find_spec("OpenSSL") is None:
            raise SkipTest("pyOpenSSL is not installed")
        from twisted.internet.ssl import Certificate, PrivateCertificate

        pem = makeCertificate()
        own = PrivateCertificate.loadPEM(pem)
        authority = Certificate.loadPEM(pem)
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "own.pem").write_bytes(pem)
            trusting = f":trustRoots={folder}"
            known = f"{trusting}:certificate={folder}/own.pem:privateKey={folder}/own.pem"
            for options, host, more, isSent in (
                (own.options(), "localhost", trusting, True),
                (own.options(), "localhost", "", False),
                (own.options(), "127.0.0.1", trusting, False),
                (own.options(authority), "localhost", known, True),
                (own.options(authority), "localhost", trusting, False),
            ):
                # With TLS 1.3, clients learn after the handshake that they need a certificate.
                self.patch(syslog, "LINGER_SECONDS", 0.05 if isSent else 30.0)
                factory: Any = Factory.forProtocol(_Stream)
                factory.complete = Deferred()
                port = reactor.listenSSL(0, factory, options, interface="127.0.0.1")
                settings = SyslogSettings(f"tls:{host}:{port.getHost().port}{more}")
                sending = SyslogChannel(reactor, settings).send(alertsOf("leaf 1", "leaf 2"))
                if isSent:
                    await sending
                    self.assertFramed(await factory.complete, "leaf 1", "leaf 2")
                else:
                    with self.assertRaises(DeviceUnavailable):
                        await sending
                    self.assertEqual(await factory.complete, b"")
                await port.stopListening()

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
