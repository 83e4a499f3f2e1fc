"""
librdmacm's C{rping} with C{txrdma rping} in both roles: the kernel's CM and txrdma's.
"""

from __future__ import annotations

import re

from txrdma.test.system.kernel import Box, Witness
from txrdma.test.system.kernel.cmworld import counted, Program, ProgramTestCase, SHOWN, since
from txrdma.test.system.kernel.world import HERE6, HERE_LOCAL, THERE6, THERE_LOCAL

BOXES = (Box(rxe=False, timeout=420),)


class RpingTests(ProgramTestCase):
    """Pings over the software device."""

    witness = Witness("txrdma rping, software device", "rping on rxe", "REQ to DREP, SEND, READ, WRITE")
    programs = ("rping",)

    def server(self, *words: str) -> Program:
        """Start txrdma's server, and wait until it listens."""
        server = self.ours("txrdma", "rping", "-s", "-a", self.there, "-d", *words)
        server.expectOutput("listening")
        return server

    def theirServer(self, *words: str) -> Program:
        """Start librdmacm's server, and wait until it listens."""
        server = self.start("rping", "-s", "-a", self.here, "-d", *words)
        server.expectOutput("rdma_listen")
        return server

    def test_theyPing(self) -> None:
        """rping pings txrdma's server and verifies; the output and counters are complete."""
        server = self.server("-v")
        before = counted()
        status, output = self.start(
            "rping", "-c", "-a", self.there, "-I", self.here, "-V", "-v", "-S", "200", "-C", "3"
        ).end()
        self.assertEqual((status, output.count("ping data: rdma-ping-")), (0, 3), output)
        status, received = server.end()
        self.assertEqual(status, 0, received)
        pings = [line for line in output.splitlines() if line.startswith("ping data")]
        self.assertEqual([f"server {line}" for line in pings], re.findall("server ping data.*", received))
        self.assertIn(f"asked by {self.here}", received)
        self.assertEqual(since(before), {"tx req": 1, "rx rep": 1, "tx rtu": 1, "tx dreq": 1, "rx drep": 1})

    def test_wePing(self) -> None:
        """txrdma's client pings rping's server with messages of several packets, and verifies."""
        server = self.theirServer("-v", "-S", "20000")
        before = counted()
        ends = ("-c", "-a", self.here, "-I", self.there)
        status, output = self.ours("txrdma", "rping", *ends, "-V", "-v", "-S", "20000", "-C", "5").end()
        self.assertEqual((status, output.count("ping data: rdma-ping-")), (0, 5), output[-SHOWN:])
        status, received = server.end()
        self.assertEqual((status, received.count("server ping data: rdma-ping-")), (0, 5), received[-SHOWN:])
        self.assertEqual(since(before), {"rx req": 1, "tx rep": 1, "rx rtu": 1, "rx dreq": 1, "tx drep": 1})

    def test_noListener(self) -> None:
        """The kernel rejects a REQ for a port without listener, and txrdma's client reports it."""
        before = counted()
        status, output = self.ours(
            "txrdma", "rping", "-c", "-a", self.here, "-I", self.there, "-p", "9", "-C", "1"
        ).end()
        self.assertEqual(status, 1)
        self.assertIn("INVALID_SERVICE_ID", output)  # reason 8
        self.assertEqual(since(before), {"rx req": 1, "tx rej": 1})


class RpingIPv6Tests(RpingTests):
    """Tests of rping over IPv6."""

    witness = Witness("txrdma rping, software device", "rping on rxe", "the same over IPv6")
    here, there = HERE6, THERE6


class RpingLinkLocalTests(RpingTests):
    """Tests of rping between link-local addresses."""

    witness = Witness("txrdma rping, software device", "rping on rxe", "the same, link-local addresses")
    here, there = HERE_LOCAL, THERE_LOCAL
