"""
Management ports of the kernel's devices, and calls between them, for suites of management datagrams.

Paths use IPv6 GIDs: with IPv4 GIDs the kernel matches no response to its request.
"""

from __future__ import annotations

import errno
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.epollreactor import EPollReactor
from twisted.trial.unittest import SynchronousTestCase

from txrdma.iba.path import IBPath
from txrdma.iba.types import GID, QPN
from txrdma.mad.agent import MADAgent
from txrdma.mad.layouts.attributes import ManagementClass, Method
from txrdma.mad.layouts.messages import MADRequest
from txrdma.mad.ports import openMADPort
from txrdma.mad.server import MADServer
from txrdma.test.support.mad.pairs import Answers
from txrdma.test.system.kernel import OUTSIDE
from txrdma.testing.reactors import RealTime

PERFORMANCE = ManagementClass.PERFORMANCE
ADMINISTRATION = ManagementClass.SUBN_ADM
PATIENCE = 60.0
"""Seconds; the guest is slow."""


def run(*words: str) -> None:
    """Run a system program that must succeed."""
    subprocess.run(words, check=True, capture_output=True, text=True)


def linkLocal(device: str) -> GID:
    """Return the link-local GID, made from the MAC address; the kernel creates it asynchronously."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        try:
            gid = GID.fromString(Path(f"/sys/class/infiniband/{device}/ports/1/gids/0").read_text().strip())
        except OSError:
            gid = GID(bytes(16))
        if gid.isLinkLocal and not _isTentative(device):
            return gid
        time.sleep(0.1)
    raise AssertionError(f"{device} gets no link-local GID")


def _isTentative(device: str) -> bool:
    netdev = f"v{device[-1]}"
    lines = Path("/proc/net/if_inet6").read_text().splitlines()
    return any(line.split()[5] == netdev and int(line.split()[4], 16) & 0x40 for line in lines)


def unknown(*args: object) -> int:
    """Refuse an ioctl like an older kernel."""
    raise OSError(errno.ENOTTY, "Inappropriate ioctl for device")


class MADCase(RealTime, SynchronousTestCase):
    """Tests with ports of the kernel's two devices."""

    skip = OUTSIDE
    slowness = 20.0

    def setUp(self) -> None:
        self.reactor: Any = EPollReactor()
        self.gids = [linkLocal("rxe0"), linkLocal("rxe1")]

    def open(self, description: str, **more: Any) -> MADAgent:
        """Return an agent on a new port."""
        agent = MADAgent(self.reactor, openMADPort(self.reactor, description), **more)
        self.addCleanup(agent.close)
        return agent

    def pathTo(self, number: int, qpn: int = 1) -> IBPath:
        """Return the path to that device's queue pair."""
        return IBPath(sgid=self.gids[1 - number], dgid=self.gids[number], dqpn=QPN(qpn))

    def serve(
        self,
        agent: MADAgent,
        managementClass: ManagementClass,
        how: Callable[[MADRequest], object],
        *methods: Method,
    ) -> Answers:
        """Answer requests at that agent's port."""
        answers = Answers(how)
        MADServer(agent).handle(managementClass, answers, methods or (Method.GET, Method.SET))
        return answers

    def result(self, answer: Deferred[Any], seconds: float = 3.0) -> Any:
        self.runUntil(lambda: answer.called, seconds)
        return self.successResultOf(answer)

    def failure(self, answer: Deferred[Any], kind: type[Exception]) -> Any:
        self.runUntil(lambda: answer.called)
        return self.failureResultOf(answer, kind).value
