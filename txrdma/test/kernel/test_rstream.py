"""
librdmacm's C{rstream} streams to ours and back, and each side verifies: two implementations of rsockets.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from twisted.trial.unittest import SkipTest, SynchronousTestCase

from txrdma.test.kernel import Box, OUTSIDE, record, Witness
from txrdma.test.kernel.rstreamer import SYNC
from txrdma.test.kernel.smcworld import environment
from txrdma.test.kernel.world import HERE, InTheBox, NAMESPACE, PACE, THERE

BOXES = (Box(rxe=False, timeout=420),)

SECONDS = 4.0 * PACE
PORT = "7471"
SHAPES = (("64", "50", "4"), ("1000", "100", "1"), ("65536", "20", "1"), ("300000", "2", "2"))
"""Bytes, transfers and iterations of C{rstream}: below and above what one half of a buffer holds."""


class RstreamTests(InTheBox, SynchronousTestCase):
    """Streams over the software device."""

    skip = OUTSIDE
    witness = Witness("rsocket: over the software device", "rstream on rxe", "rsockets, both ways, verified")

    def setUp(self) -> None:
        super().setUp()
        if shutil.which("rstream") is None:
            raise SkipTest("rstream is not installed")

    def start(self, *words: str) -> tuple[subprocess.Popen[bytes], Path]:
        """A process, and the file that has what it says."""
        out = tempfile.NamedTemporaryFile()
        self.addCleanup(out.close)
        process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, env=environment()
        )
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process, Path(out.name)

    def ours(self, role: str, endpoint: str, shape: tuple[str, ...]) -> tuple[subprocess.Popen[bytes], Path]:
        """Our program, far away."""
        words = (sys.executable, "-m", "txrdma.test.kernel.rstreamer", role, endpoint, *shape)
        return self.start("ip", "netns", "exec", NAMESPACE, *words)

    def theirs(self, shape: tuple[str, ...], *words: str) -> tuple[subprocess.Popen[bytes], Path]:
        """Their program, here, which verifies."""
        size, count, iterations = shape
        options = ("-S", size, "-C", count, "-I", iterations, "-p", PORT, "-T", "v")
        return self.start("stdbuf", "-oL", "rstream", *options, *words)

    def check(self, ours: tuple[subprocess.Popen[bytes], Path], theirs: tuple[subprocess.Popen[bytes], Path],
              shape: tuple[str, ...]) -> None:  # fmt: skip
        """Both end well, and ours has heard and sent what it should."""
        for process, out in (theirs, ours):
            try:
                process.wait(timeout=SECONDS)
            except subprocess.TimeoutExpired:
                self.fail(f"{process.args!r} does not end: {out.read_text()}; {ours[1].read_text()}")
        said = theirs[1].read_text()
        self.assertEqual(theirs[0].returncode, 0, said)
        self.assertNotIn("verification failed", said)
        size, count, iterations = map(int, shape)
        total = SYNC + size * count * iterations
        self.assertIn(f"verified {total} sent {total} ConnectionDone", ours[1].read_text())

    def test_theirClient(self) -> None:
        """Their client streams to our server."""
        begun = time.monotonic()
        for shape in SHAPES:
            server = self.ours("server", f"rsocket:{THERE}:{PORT}", shape)
            self.hear(server, "listening")
            self.check(server, self.theirs(shape, "-s", THERE, "-b", HERE), shape)
        record("seconds", round(time.monotonic() - begun, 1))

    def test_theirServer(self) -> None:
        """Our client streams to their server."""
        begun = time.monotonic()
        for shape in SHAPES:
            server = self.theirs(shape, "-b", HERE)
            time.sleep(0.1 * PACE)  # it says nothing when it listens
            client = self.ours("client", f"rsocket:{HERE}:{PORT}:bindAddress={THERE}", shape)
            self.check(client, server, shape)
        record("seconds", round(time.monotonic() - begun, 1))

    def hear(self, program: tuple[subprocess.Popen[bytes], Path], word: str) -> None:
        """Wait until a program has said a word."""
        process, out = program
        end = time.monotonic() + SECONDS
        while word not in (said := out.read_text()):
            if time.monotonic() > end or process.poll() is not None:
                self.fail(f"it never says {word!r}, but {said!r}")
            time.sleep(0.05)
