"""
Commands between hosts of RoCE: two processes, and software devices over UDP on loopback.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

import txrdma


def command(*words: str) -> subprocess.Popen[str]:
    """Begin one."""
    return subprocess.Popen(
        [sys.executable, "-m", "txrdma", *words],
        cwd=Path(txrdma.__file__).parents[1],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def addresses() -> tuple[str, str]:
    number = os.getpid()
    low = f"{number >> 8 & 255}.{number & 255}"
    return f"127.61.{low}", f"127.62.{low}"


class PingTests(SynchronousTestCase):
    slowBecause = "starts processes that import all of the package"

    def test_ping(self) -> None:
        here, there = addresses()
        server = command("sysstat", "--server", "-d", f"vmad:soft:{there}")
        try:
            assert server.stderr is not None
            line = server.stderr.readline()
            match = re.fullmatch(r"serving at vmad:soft:[0-9.]+, LID 0, dqpn (\d+)\n", line)
            self.assertIsNotNone(match, line)
            assert match is not None
            target = f"{there} dqpn {match[1]}"
            asking = command("sysstat", target, "host", "--json", "-d", f"vmad:soft:{here}")
            out, errors = asking.communicate(timeout=30)
            self.assertEqual((asking.returncode, errors), (0, ""))
            self.assertEqual(json.loads(out), {"host": socket.gethostname()})
        finally:
            server.send_signal(signal.SIGINT)
            _, errors = server.communicate(timeout=30)
        self.assertEqual((server.returncode, errors), (0, "answered 1 requests\n"))
