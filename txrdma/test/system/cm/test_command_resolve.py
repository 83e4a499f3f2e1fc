"""
C{txrdma resolve}: paths and service IDs.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.python.usage import UsageError
from twisted.trial.unittest import TestCase

from txrdma.cm.connections.datagrams import DatagramProtocol, DatagramServerEndpoint
from txrdma.cm.errors import HostUnknown
from txrdma.command import TxrdmaOptions
from txrdma.commands.resolve import lines, resolved
from txrdma.messages.protocol import MessageFactory
from txrdma.ports.softdevices import softDeviceAt
from txrdma.test.support.processes import CHECKOUT, loopbackAddress


def options(*words: str) -> Any:
    parsed = TxrdmaOptions()
    parsed.parseOptions(["resolve", *words])
    return parsed.subOptions


class ResolveTests(TestCase):
    """Output of the command about hosts and ports."""

    slowBecause = "each command is a process"

    def setUp(self) -> None:
        self.here, self.there = loopbackAddress(), loopbackAddress()

    async def test_path(self) -> None:
        """The command shows address, service, device, path and timeouts of a host and a port."""
        found = await resolved(reactor, options(self.there, "7471", "-I", self.here))
        self.assertEqual(found["addresses"], [self.there])
        self.assertEqual(found["service"], {"id": 0x1061D2F, "portSpace": "TCP", "port": 7471})
        self.assertEqual(found["device"], f"soft:{self.here}")
        self.assertIn(f"sgid ::ffff:{self.here}", found["path"])
        self.assertAlmostEqual(found["requestSeconds"], 4.096e-6 * ((1 << 18) + (2 << 16)))
        self.assertNotIn("answer", found)
        text = "\n".join(lines(found))
        for words in (self.there, "0x0000000001061d2f", "port 7471", "TCP port space", "REQ  ", "25.8 s"):
            self.assertIn(words, text)

    async def test_ask(self) -> None:
        """The command queries a datagram service for its queue pair."""
        protocol = DatagramProtocol()
        port: Any = await DatagramServerEndpoint(reactor, 7471, softDeviceAt(self.there)).listen(
            MessageFactory(lambda: protocol)
        )
        found = await resolved(reactor, options(self.there, "7471", "--udp", "--ask", "-I", self.here))
        self.assertEqual(found["answer"]["qpn"], protocol.transport.qpn)
        self.assertIn(f"queue pair {protocol.transport.qpn:#x}, Q_Key 0x01234567", lines(found)[-1])
        self.assertIn("UDP port space", "\n".join(lines(found)))
        await port.stopListening()

    async def test_unknown(self) -> None:
        """A name without an address fails."""
        await self.assertFailure(self.asked("nobody.invalid"), HostUnknown)

    def asked(self, host: str) -> Any:
        """Return the output for a host, as a Deferred."""
        return Deferred.fromCoroutine(resolved(reactor, options(host, "7471", "-I", self.here)))

    def test_services(self) -> None:
        """A service ID is explained without a host."""
        for word, reported in (
            ("0x1061d2f", {"id": 0x1061D2F, "portSpace": "TCP", "port": 7471}),
            ("17899823", {"id": 0x111212F, "portSpace": "UDP", "port": 0x212F}),
            ("66", {"id": 66, "portSpace": None, "port": None}),
        ):
            command = [sys.executable, "-m", "txrdma", "resolve", word]
            done = subprocess.run([*command, "--json"], cwd=CHECKOUT, capture_output=True, text=True)
            self.assertEqual(json.loads(done.stdout), reported)
            done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True)
            self.assertIn("RDMA CM", done.stdout)

    def test_spellings(self) -> None:
        """A host and its port may be written as in an endpoint string."""
        for text, host in (
            ("a.example:7", "a.example"),
            ("rdma:a.example:7", "a.example"),
            ("[::1]:7", "::1"),
        ):
            parsed = options(text)
            self.assertEqual((parsed["what"], parsed["number"], bool(parsed["port"])), (host, 7, True), text)

    def test_mistakes(self) -> None:
        """An argument that is neither a host with a port nor a service ID is refused."""
        for words in ((), ("somewhere",), ("somewhere", "http"), ("somewhere", "0"), ("somewhere", "65536")):
            self.assertIn(" is not a ", str(self.assertRaises(UsageError, options, *words)), words)
        self.assertIn("--udp", str(self.assertRaises(UsageError, options, "somewhere", "1", "--ask")))
