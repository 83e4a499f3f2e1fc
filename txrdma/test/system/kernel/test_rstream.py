"""
librdmacm's C{rstream} and our program exchange streams, which both verify: two implementations of rsockets.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from twisted.internet.endpoints import quoteStringArgument
from twisted.trial.unittest import SkipTest, SynchronousTestCase

from txrdma.test.system.kernel import Box, OUTSIDE, record, Witness
from txrdma.test.system.kernel.rstreamer import SYNC
from txrdma.test.system.kernel.smcworld import environment
from txrdma.test.system.kernel.world import HERE6, InTheBox, NAMESPACE, PACE, THERE6

BOXES = (Box(rxe=False, timeout=420),)

SECONDS = 9.0 * PACE
PORT = "7471"
SHAPES = (("64", "50", "4"), ("1000", "100", "1"), ("65536", "20", "1"), ("300000", "2", "2"))
"""Bytes, transfers and iterations of C{rstream}: below and above half a buffer."""


class RstreamTests(InTheBox, SynchronousTestCase):
    """Streams over the software device."""

    skip = OUTSIDE
    witness = Witness("rsocket: over the software device", "rstream on rxe", "rsockets, both ways, verified")

    def setUp(self) -> None:
        super().setUp()
        if shutil.which("rstream") is None:
            raise SkipTest("rstream is not installed")

    def start(self, *words: str) -> tuple[subprocess.Popen[bytes], Path]:
        """Start a process; return it with the file of its output."""
        out = tempfile.NamedTemporaryFile()
        self.addCleanup(out.close)
        process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, env=environment()
        )
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process, Path(out.name)

    def ours(self, role: str, endpoint: str) -> tuple[subprocess.Popen[bytes], Path]:
        """Start our program, in the other namespace."""
        words = (
            sys.executable,
            "-m",
            "txrdma.test.system.kernel.rstreamer",
            role,
            endpoint,
            *map(",".join, SHAPES),
        )
        return self.start("ip", "netns", "exec", NAMESPACE, *words)

    def startReference(self, shape: tuple[str, ...], *words: str) -> None:
        """Run rstream, which verifies and must succeed."""
        size, count, iterations = shape
        options = ("-S", size, "-C", count, "-I", iterations, "-p", PORT, "-T", "v")
        process, out = self.start("stdbuf", "-oL", "rstream", *options, *words)
        try:
            process.wait(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            self.fail(f"{process.args!r} does not end: {out.read_text()}")
        self.assertEqual(process.returncode, 0, out.read_text())
        self.assertNotIn("verification failed", out.read_text())

    def check(self, ours: tuple[subprocess.Popen[bytes], Path]) -> None:
        """Check that our program received and sent everything."""
        totals = [SYNC + int(size) * int(count) * int(iterations) for size, count, iterations in SHAPES]
        for total in totals:
            self.expectOutput(ours, f"verified {total} sent {total} ConnectionDone")
        self.assertEqual(ours[0].wait(timeout=SECONDS), 0)

    def test_theirClient(self) -> None:
        """rstream's client streams to our server."""
        server = self.ours("server", f"rsocket:{quoteStringArgument(self.there)}:{PORT}")
        self.expectOutput(server, "listening")
        begun = time.monotonic()
        for shape in SHAPES:
            self.startReference(shape, "-s", self.there, "-b", self.here)
        self.check(server)
        record("seconds", round(time.monotonic() - begun, 1))

    def test_theirServer(self) -> None:
        """Our client streams to rstream's server, which serves one connection at a time."""
        client = self.ours(
            "client",
            f"rsocket:{quoteStringArgument(self.here)}:{PORT}:bindAddress={quoteStringArgument(self.there)}",
        )
        begun = time.monotonic()
        for shape in SHAPES:
            self.startReference(shape, "-b", self.here)
        self.check(client)
        record("seconds", round(time.monotonic() - begun, 1))

    def expectOutput(self, program: tuple[subprocess.Popen[bytes], Path], words: str) -> None:
        """Wait until a program has printed a text."""
        process, out = program
        end = time.monotonic() + SECONDS
        while words not in (output := out.read_text()):
            if time.monotonic() > end:
                self.fail(f"it never says {words!r}, but {output!r}")
            time.sleep(0.05)


class RstreamIPv6Tests(RstreamTests):
    """The same over IPv6."""

    witness = Witness("rsocket: over the software device", "rstream on rxe", "the same over IPv6")
    here, there = HERE6, THERE6
