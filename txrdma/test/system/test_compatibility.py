"""
Processes of one host with different versions of txrdma.

The other versions are from the history of the checkout: the oldest one with today's version of shared memory,
and the one before it. C{make test-compat} runs these tests; without history they are skipped.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

from twisted.trial.unittest import SkipTest, SynchronousTestCase

from txrdma.test.support import CHECKOUT

DECLARED = "txrdma/soft/shared/_rendezvous.py"
PEER = CHECKOUT / "txrdma" / "test" / "support" / "versionpeer.py"
LISTENING = ("smc:0:interface=127.0.0.1", "btl:127.0.0.1:0", "rsocket:127.0.0.1:0")
CONNECTING = ("smc:127.0.0.1:{}", "btl:127.0.0.1:{}", "rsocket:127.0.0.1:{}")
NAMES = ("smc", "btl", "rsocket")


def git(*words: str) -> bytes:
    """Return the output of git, or raise L{SkipTest} without such a history."""
    try:
        done = subprocess.run(
            ["git", "-c", f"safe.directory={CHECKOUT}", *words], cwd=CHECKOUT, capture_output=True, timeout=60
        )
    except OSError as error:
        raise SkipTest(f"git cannot be run: {error}") from None
    if done.returncode:
        raise SkipTest(f"the history of this checkout is missing: {done.stderr.decode().strip()}")
    return done.stdout


class CompatibilityTests(SynchronousTestCase):
    """Each stream connects to the other version: over shared memory, or by another route with a reason."""

    slowBecause = "each conversation has two processes, with the software of two versions"
    _trees: ClassVar[dict[str, Path]] = {}

    def tree(self, revision: str) -> Path:
        """Return a folder with the packages of a revision."""
        if revision not in self._trees:
            folder = Path(self.mktemp()).absolute()
            folder.mkdir(parents=True)
            archive = git("archive", revision, "txrdma", "twisted")
            subprocess.run(["tar", "-x", "-C", str(folder)], input=archive, check=True, timeout=60)
            self._trees[revision] = folder
        return self._trees[revision]

    def introduced(self) -> str:
        """Return the commit that introduced today's version of shared memory."""
        if git("rev-parse", "--is-shallow-repository").strip() == b"true":
            raise SkipTest("the history of this checkout is missing: it is a shallow clone")
        if git("status", "--porcelain", "--", DECLARED).strip():
            raise SkipTest(f"{DECLARED} has changes that are not committed")
        found = git("log", "-1", "--format=%H", "-G^VERSION: Final", "--", DECLARED).decode().strip()
        if not found:
            raise SkipTest(f"the history of this checkout has no {DECLARED}")
        return found

    def talk(self, server: Path, client: Path) -> tuple[dict[str, dict[str, Any]], str]:
        """Return the results of a client by the kind of stream, and the server's log."""
        log = Path(self.mktemp())
        # Log to standard error, as twistd does.
        program = "import sys, runpy; from twisted.python import log; log.startLogging(sys.stderr, False); "
        program += "path = sys.argv.pop(1); sys.argv[0] = path; runpy.run_path(path, run_name='__main__')"
        words = [sys.executable, "-c", program, str(PEER)]
        with (
            log.open("wb") as errors,
            subprocess.Popen(
                [*words, str(server), "listen", *LISTENING], stdout=subprocess.PIPE, stderr=errors, text=True
            ) as process,
        ):
            try:
                assert process.stdout is not None
                ports = process.stdout.readline().split()
                self.assertEqual(len(ports), 3, log.read_text())
                strings = [string.format(port) for string, port in zip(CONNECTING, ports, strict=True)]
                done = subprocess.run(
                    [*words, str(client), "connect", *strings], capture_output=True, text=True, timeout=120
                )
            finally:
                process.terminate()
        results = [json.loads(line) for line in done.stdout.splitlines()]
        self.assertEqual(len(results), 3, done.stderr)
        return dict(zip(NAMES, results, strict=True)), log.read_text()

    def checkMessages(self, result: dict[str, Any], serverLog: str) -> None:
        """Check that C{btl:} has worked, or that both ends report the versions of their introductions."""
        if not result["isEqual"]:
            self.assertRegex(result["error"], r"the peer speaks version \d+, not \d+")
            self.assertRegex(serverLog, r"Rejecting a connection.*the peer speaks version \d+, not \d+")

    def test_sameLayout(self) -> None:
        """Versions with the same layout share memory."""
        other = self.tree(self.introduced())
        for server, client in ((CHECKOUT, other), (other, CHECKOUT)):
            results, serverLog = self.talk(server, client)
            self.assertTrue(results["smc"]["isEqual"], results["smc"])
            self.assertEqual(results["smc"]["mode"], "SMC-R")
            self.assertTrue(results["rsocket"]["isEqual"], results["rsocket"])
            self.checkMessages(results["btl"], serverLog)
            for name in ("smc", "rsocket"):
                self.assertRegex("\n".join(results[name]["log"]), "(connected by|done;) shared-memory")

    def test_otherLayout(self) -> None:
        """Versions with different layouts use TCP or UDP; today's logs why."""
        other = self.tree(f"{self.introduced()}^")
        for server, client in ((CHECKOUT, other), (other, CHECKOUT)):
            results, serverLog = self.talk(server, client)
            self.assertTrue(results["smc"]["isEqual"], results["smc"])
            self.assertEqual(results["smc"]["mode"], "TCP")
            self.assertIn("plain TCP, because", "\n".join(results["smc"]["log"]))
            self.assertTrue(results["rsocket"]["isEqual"], results["rsocket"])
            self.assertRegex("\n".join(results["rsocket"]["log"]), "(connected by|done;) rocev2")
            self.checkMessages(results["btl"], serverLog)
            todays = serverLog if server == CHECKOUT else "\n".join(results["smc"]["log"])
            self.assertIn("another version of shared memory", todays)
