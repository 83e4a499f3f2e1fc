"""Ping and system statistics of OpenFabrics, client and server, in a simulated fabric."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from txrdma.error import ResourceExhausted
from txrdma.mad.errors import MADError
from txrdma.mad.server import MADServer
from txrdma.mad.vendor import (
    filled,
    hostName,
    OpenIBHostInfo,
    OpenIBPing,
    processors,
    servePing,
)
from txrdma.test.support.mad.simulated import FabricTestCase, gmp


class VendorTests(FabricTestCase):
    def test_ping(self) -> None:
        handler, end = servePing(MADServer(self.agentAt("c")), "c.example")
        seen: list[bytes] = []
        received = self.agent.received

        def watched(datagram: bytes, envelope: object) -> None:
            seen.append(datagram)
            received(datagram, envelope)

        self.agent.received = watched  # type: ignore[method-assign]  # to look at what passes
        answer = self.answerTo(self.agent.VendGet(OpenIBPing, gmp(self.lid("c"))))
        self.assertEqual((answer.text, handler.answered), ("c.example", 1))
        self.assertEqual(
            (seen[0][1], seen[0][3], seen[0][16:18], seen[0][37:40]), (0x32, 0x81, b"\0\0", b"\0\x14\5")
        )
        end()
        answer = self.answerTo(self.agent.VendGet(OpenIBPing, gmp(self.lid("c"))))
        self.assertEqual((answer.text, handler.answered), ("c", 1))  # answered by the simulated host itself

    def test_unknownAttribute(self) -> None:
        server = MADServer(self.agentAt("c"))
        handler, _ = servePing(server)
        server.handle(0x33, handler, (1,), 0x001405)
        error = self.refused(self.agent.VendGet(OpenIBHostInfo, gmp(self.lid("c"))), MADError)
        self.assertEqual(error.status, 0x0C)

    def test_hostName(self) -> None:

        def ask(*arguments: object) -> str:
            raise AssertionError("a DNS query was made")

        for name in ("getfqdn", "gethostbyaddr", "gethostbyname", "getaddrinfo"):
            self.patch(socket, name, ask)
        self.assertEqual(hostName(), os.uname().nodename)

    def test_twice(self) -> None:
        servePing(MADServer(self.agentAt("c")))
        self.assertRaises(ResourceExhausted, servePing, MADServer(self.agentAt("c")))

    def test_text(self) -> None:
        self.assertEqual(filled("x" * 500), b"x" * 215 + b"\0")
        self.assertEqual(filled(b"m\xfcller".decode("utf-8", "surrogateescape")).rstrip(b"\0"), b"m\xfcller")
        self.assertEqual(OpenIBPing(content=b"y" * 216).text, "y" * 216)

    def test_processors(self) -> None:
        path = Path(self.mktemp())
        path.write_text(
            "processor\t: 0\nmodel name\t: Fast\ncpu MHz\t: 2000.5\n\nprocessor\t: 1\ncpu MHz\t: 1\n\n"
        )
        reported = "cpu 0: model Fast MHZ 2000.5\ncpu 1: model unknown MHZ 1\n"
        self.assertEqual(processors(str(path)), reported)
        self.assertRegex(processors("/nonexistent"), r"^\d+ processors\n$")
