"""
librdmacm's C{rstream} and txrdma exchange streams, which both verify: two implementations of rsockets.
"""

from __future__ import annotations

import time

from twisted.internet.endpoints import quoteStringArgument

from txrdma.test.system.kernel import Box, record, Witness
from txrdma.test.system.kernel.cmworld import Program, ProgramTestCase
from txrdma.test.system.kernel.rstreamer import SYNC
from txrdma.test.system.kernel.world import HERE6, HERE_LOCAL, THERE6, THERE_LOCAL

BOXES = (Box(rxe=False, timeout=420),)

PORT = "7471"
SHAPES = (("64", "50", "4"), ("1000", "100", "1"), ("65536", "20", "1"), ("300000", "2", "2"))
"""Bytes, transfers and iterations of C{rstream}: below and above half a buffer."""


class RstreamTests(ProgramTestCase):
    """Streams over the software device."""

    witness = Witness("rsocket: over the software device", "rstream on rxe", "rsockets, both ways, verified")
    programs = ("rstream",)

    def streamer(self, role: str, endpoint: str) -> Program:
        """Start txrdma's program, in the other namespace."""
        return self.ours("txrdma.test.system.kernel.rstreamer", role, endpoint, *map(",".join, SHAPES))

    def startReference(self, shape: tuple[str, ...], *words: str) -> None:
        """Run rstream, which verifies and must succeed."""
        size, count, iterations = shape
        options = ("-S", size, "-C", count, "-I", iterations, "-p", PORT, "-T", "v")
        status, output = self.start("rstream", *options, *words).end()
        self.assertEqual(status, 0, output)
        self.assertNotIn("verification failed", output)

    def check(self, ours: Program) -> None:
        """Check that txrdma's program received and sent everything."""
        for size, count, iterations in SHAPES:
            total = SYNC + int(size) * int(count) * int(iterations)
            ours.expectOutput(f"verified {total} sent {total} ConnectionDone")
        self.assertEqual(ours.end()[0], 0)

    def test_theirClient(self) -> None:
        """rstream's client streams to txrdma's server."""
        server = self.streamer("server", f"rsocket:{quoteStringArgument(self.there)}:{PORT}")
        server.expectOutput("listening")
        begun = time.monotonic()
        for shape in SHAPES:
            self.startReference(shape, "-s", self.there, "-b", self.here)
        self.check(server)
        record("seconds", round(time.monotonic() - begun, 1))

    def test_theirServer(self) -> None:
        """txrdma's client streams to rstream's server, which serves one connection at a time."""
        client = self.streamer(
            "client",
            f"rsocket:{quoteStringArgument(self.here)}:{PORT}:bindAddress={quoteStringArgument(self.there)}",
        )
        begun = time.monotonic()
        for shape in SHAPES:
            self.startReference(shape, "-b", self.here)
        self.check(client)
        record("seconds", round(time.monotonic() - begun, 1))


class RstreamIPv6Tests(RstreamTests):
    """Tests of rstream over IPv6."""

    witness = Witness("rsocket: over the software device", "rstream on rxe", "the same over IPv6")
    here, there = HERE6, THERE6


class RstreamLinkLocalTests(RstreamTests):
    """Tests of rstream between link-local addresses."""

    witness = Witness("rsocket: over the software device", "rstream on rxe", "the same, link-local addresses")
    here, there = HERE_LOCAL, THERE_LOCAL
