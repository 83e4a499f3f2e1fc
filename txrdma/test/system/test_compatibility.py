"""
Processes of one host with different versions of txrdma.

The other versions are from the history of the checkout: the oldest one with today's version of shared memory,
the one before it, and the last one that is tagged. C{make test-compat} runs these tests; without history they
are skipped.
"""

from __future__ import annotations

import json
import re
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

    def checkSharing(self, other: Path) -> None:
        """Check that streams in both directions share memory with the software in a folder."""
        for server, client in ((CHECKOUT, other), (other, CHECKOUT)):
            results, serverLog = self.talk(server, client)
            for name in self.working(results, serverLog):
                route = r"use \d+ bytes of shared memory" if name == "btl" else "done; shared-memory"
                self.assertRegex("\n".join(results[name]["log"]), route)
            self.assertEqual(results["smc"]["mode"], "SMC-R")

    def checkFallback(self, other: Path) -> None:
        """Check that streams in both directions use TCP or UDP, for a reason that today's software logs."""
        for server, client in ((CHECKOUT, other), (other, CHECKOUT)):
            results, serverLog = self.talk(server, client)
            todays = {name: "\n".join(results[name]["log"]) for name in NAMES}
            if server == CHECKOUT:
                # It writes an event at the end of each connection, the last line of its part.
                parts = re.findall(r"(?s)(.+?) (smc|btl|rsocket) connection with", serverLog)
                todays = {name: text for text, name in parts}
            for name in self.working(results, serverLog):
                if name != "smc" or client == CHECKOUT:
                    self.assertIn("another version of shared memory", todays[name])
                if name != "smc":
                    self.assertIn("done; rocev2", "\n".join(results[name]["log"]))
            self.assertEqual(results["smc"]["mode"], "TCP")
            self.assertRegex(
                todays["smc"], "plain TCP, because (ERR_RDYLNK|PEERDECL; the peer reports ERR_RDYLNK)"
            )

    def working(self, results: dict[str, dict[str, Any]], serverLog: str) -> list[str]:
        """Return the streams that echoed: all of them, C{btl:} unless its introductions differ."""
        wrong = [name for name in NAMES if not results[name]["isEqual"]]
        self.assertLessEqual({*wrong}, {"btl"}, results)
        if wrong:
            self.assertRegex(results["btl"]["error"], r"the peer speaks version \d+, not \d+")
            self.assertRegex(serverLog, r"Rejecting a connection.*the peer speaks version \d+, not \d+")
        return [name for name in NAMES if name not in wrong]

    def test_sameLayout(self) -> None:
        """Versions with the same layout share memory."""
        self.checkSharing(self.tree(self.introduced()))

    def test_otherLayout(self) -> None:
        """Versions with different layouts use TCP or UDP; today's logs why."""
        self.checkFallback(self.tree(f"{self.introduced()}^"))

    def test_lastTag(self) -> None:
        """The last tagged version shares memory if its layout is today's, and otherwise falls back."""
        tags = git("tag", "--list", "v*", "--sort=-creatordate", "--no-contains", "HEAD").decode().split()
        if not tags:
            raise SkipTest("no earlier version is tagged")
        other = self.tree(tags[0])
        layouts = {
            re.findall(r"(?m)^VERSION: Final = (\d+)", (each / DECLARED).read_text())[0]
            for each in (CHECKOUT, other)
        }
        (self.checkSharing if len(layouts) == 1 else self.checkFallback)(other)
