"""
librdmacm's C{rping} pings C{txrdma rping}, and the other way round: the kernel's CM and ours on one wire.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from twisted.trial.unittest import SkipTest, SynchronousTestCase

from txrdma.test.kernel import Box, OUTSIDE, Witness
from txrdma.test.kernel.smcworld import environment
from txrdma.test.kernel.world import HERE, InTheBox, NAMESPACE, PACE, RXE, THERE

BOXES = (Box(rxe=False, timeout=420),)

SECONDS = 9.0 * PACE
"""Programs take long to start: the box emulates a processor."""

SHOWN = 1000
"""Characters of what was said that a failure shows."""
_COUNTERS = Path(f"/sys/class/infiniband/{RXE}/ports/1")


class Program:
    """A process, with what it says in a file: a pipe that nobody reads would hold it up."""

    def __init__(self, *words: str) -> None:
        self._out = tempfile.NamedTemporaryFile("w+")  # it lives as long as the process
        self.process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=self._out, stderr=subprocess.STDOUT, env=environment()
        )

    @property
    def said(self) -> str:
        """All that was said so far."""
        return Path(self._out.name).read_text(errors="replace")

    def hear(self, word: str, times: int = 1) -> None:
        """Wait for a word."""
        end = time.monotonic() + SECONDS
        while self.said.count(word) < times:
            if time.monotonic() > end or self.process.poll() is not None:
                break
            time.sleep(0.05)
        if self.said.count(word) < times:
            raise AssertionError(f"it never said {word!r}, but {self.said[-SHOWN:]!r}")

    def end(self) -> tuple[int, str]:
        """The exit status, and all that was said."""
        try:
            return self.process.wait(timeout=SECONDS), self.said
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it does not end: {self.said[-SHOWN:]!r}") from None


class RpingTests(InTheBox, SynchronousTestCase):
    """Pings over the software device."""

    skip = OUTSIDE
    witness = Witness("txrdma rping, software device", "rping on rxe", "REQ to DREP, SEND, READ, WRITE")

    def setUp(self) -> None:
        super().setUp()
        if shutil.which("rping") is None:
            raise SkipTest("rping is not installed")

    def start(self, *words: str) -> Program:
        """Start a program."""
        program = Program(*words)
        self.addCleanup(program.process.wait)
        self.addCleanup(program.process.kill)
        return program

    def ours(self, *words: str) -> Program:
        """Start ours, far away."""
        command = (sys.executable, "-m", "txrdma.command", "rping", *words)
        return self.start("ip", "netns", "exec", NAMESPACE, *command)

    def server(self, *words: str) -> Program:
        """Start our server, and wait until it listens."""
        server = self.ours("-s", "-a", THERE, "-d", *words)
        server.hear("listening")
        return server

    def theirs(self, *words: str) -> Program:
        """Start theirs, here."""
        return self.start("stdbuf", "-oL", "rping", *words)

    def theirServer(self, *words: str) -> Program:
        """Start their server, and wait until it listens."""
        server = self.theirs("-s", "-a", HERE, "-d", *words)
        server.hear("rdma_listen")
        return server

    def counted(self) -> dict[str, int]:
        """The kernel's counters of its CM by direction and kind, without messages that were repeated."""
        found: dict[str, int] = {}
        for direction, again in (("rx_msgs", "rx_duplicates"), ("tx_msgs", "tx_retries")):
            for each in (_COUNTERS / f"cm_{direction}").iterdir():
                repeated = int((_COUNTERS / f"cm_{again}" / each.name).read_text())
                found[f"{direction[:2]} {each.name}"] = int(each.read_text()) - repeated
        return found

    def since(self, before: dict[str, int]) -> dict[str, int]:
        """The kernel's messages since then; who asks for time depends on how busy the machine is."""
        changed = {name: n - before[name] for name, n in self.counted().items()}
        return {name: n for name, n in changed.items() if n and not name.endswith("mra")}

    def test_theyPing(self) -> None:
        """Their client pings our server, and verifies; all is told and counted."""
        server = self.server("-v")
        before = self.counted()
        status, said = self.theirs("-c", "-a", THERE, "-I", HERE, "-V", "-v", "-S", "200", "-C", "3").end()
        self.assertEqual((status, said.count("ping data: rdma-ping-")), (0, 3), said)
        status, heard = server.end()
        self.assertEqual(status, 0, heard)
        pings = [line for line in said.splitlines() if line.startswith("ping data")]
        self.assertEqual([f"server {line}" for line in pings], re.findall("server ping data.*", heard))
        self.assertIn(f"asked by {HERE}", heard)
        self.assertEqual(
            self.since(before), {"tx req": 1, "rx rep": 1, "tx rtu": 1, "tx dreq": 1, "rx drep": 1}
        )

    def test_wePing(self) -> None:
        """Our client pings their server with what fills several packets, and verifies."""
        server = self.theirServer("-v", "-S", "20000")
        before = self.counted()
        words = ("-c", "-a", HERE, "-I", THERE, "-V", "-v", "-S", "20000", "-C", "5")
        status, said = self.ours(*words).end()
        self.assertEqual((status, said.count("ping data: rdma-ping-")), (0, 5), said[-SHOWN:])
        status, heard = server.end()
        self.assertEqual((status, heard.count("server ping data: rdma-ping-")), (0, 5), heard[-SHOWN:])
        self.assertEqual(
            self.since(before), {"rx req": 1, "tx rep": 1, "rx rtu": 1, "rx dreq": 1, "tx drep": 1}
        )

    def test_noListener(self) -> None:
        """The kernel rejects a REQ for a port that nobody listens to, and our client says why."""
        before = self.counted()
        status, said = self.ours("-c", "-a", HERE, "-I", THERE, "-p", "9", "-C", "1").end()
        self.assertEqual(status, 1)
        self.assertIn("INVALID_SERVICE_ID", said)  # reason 8
        self.assertEqual(self.since(before), {"rx req": 1, "tx rej": 1})
