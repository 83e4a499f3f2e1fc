"""Fences of a forked process."""

from __future__ import annotations

import os
import subprocess
import sys

from twisted.trial.unittest import SynchronousTestCase

PROGRAM = """
import os
import signal
from threading import Event, Thread
from txrdma.unix import fences

acquired, ended = Event(), Event()

def acquire():
    fences.acquire()
    acquired.set()
    ended.wait()

Thread(target=acquire, daemon=True).start()
acquired.wait()
child = os.fork()
if not child:
    signal.alarm(30)
    fences.barrier()
    os._exit(0)
os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) & 0xFF)
"""


class ForkTests(SynchronousTestCase):
    """Processes in which one thread is between the acquire and the release of a fence."""

    if not hasattr(os, "fork"):
        skip = "the system has no fork"

    def test_forkedProcessDoesNotWaitForParentsThread(self) -> None:
        command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", PROGRAM]
        self.assertEqual(subprocess.run(command, timeout=60, check=False).returncode, 0)
