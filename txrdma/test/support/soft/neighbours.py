"""
Shared by tests of shared memory between real devices, in one process or two.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections import Counter
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from txrdma.iba.verbs import Completion, CompletionOpcode, Operation, Status
from txrdma.soft.device import openSoftDevice, SoftDevice
from txrdma.test.support.soft.neighbour import connect, describe
from txrdma.test.support.soft.pairs import End
from txrdma.testing.reactors import RealTime
from txrdma.testing.smc.neighbours import openDescriptors


def mappings() -> int:
    """Return how many of txrdma's regions this process has mapped."""
    return sum(_mappings().values())


def _mappings() -> Counter[str]:
    with open("/proc/self/maps") as maps:
        return Counter(line.split()[0] for line in maps if "memfd:txrdma" in line)


class Added:
    """
    Descriptors and mapped regions of this process that did not exist when this object was created.

    What ends meanwhile does not count: an earlier test, or a thread of its reactor, may have left it.
    """

    def __init__(self) -> None:
        self._before = openDescriptors(), _mappings()

    def descriptors(self) -> int:
        """Return the number of new descriptors."""
        return (openDescriptors() - self._before[0]).total()

    def mappings(self) -> int:
        """Return the number of new mapped regions."""
        return (_mappings() - self._before[1]).total()

    def isNothing(self) -> bool:
        """Return whether there are none."""
        return not self.descriptors() and not self.mappings()


class RealCase(RealTime, SynchronousTestCase):
    """
    Tests with a new reactor and real sockets.

    @cvar route: the usual route of devices.
    """

    slowness = 5.0
    route = "shared-memory"

    def setUp(self) -> None:
        gc.collect()  # what earlier tests left open must not be closed during this one
        gc.disable()
        self.addCleanup(gc.enable)
        self.createReactor()

    def open(self, route: str = "", **more: Any) -> SoftDevice:
        device = openSoftDevice(self.reactor, port=0, route=route or self.route, **more)
        self.addCleanup(device.close)
        return device

    def take(self, end: End, number: int) -> list[Completion]:
        """Return that many completions."""
        found: list[Completion] = []

        def enough() -> bool:
            found.extend(end.queue.poll(number - len(found)))
            return len(found) == number

        self.runUntil(enough)
        return found

    def pair(self) -> tuple[End, End]:
        """Return two connected ends in this process."""
        one, other = End(self.open()), End(self.open())
        one.join(other)
        other.join(one)
        return one, other


class NeighbourCase(RealCase):
    def neighbour(self, end: End) -> subprocess.Popen[str]:
        """Start a process that is connected to this end."""
        process = subprocess.Popen(
            [sys.executable, "-m", "txrdma.test.support.soft.neighbour"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        self.addCleanup(self.end, process)
        assert process.stdin is not None and process.stdout is not None
        self.reported = process.stdout.readline()
        process.stdin.write(describe(end) + "\n")
        process.stdin.flush()
        self.assertEqual(process.stdout.readline(), "ready\n")
        connect(end, self.reported)
        self.assertEqual(end.qp.route, "shared-memory")
        return process

    def end(self, process: subprocess.Popen[str]) -> None:
        process.kill()
        if process.stdout is not None and not process.stdout.closed:
            process.communicate()

    def exchange(self, end: End) -> None:
        """Send a message and receive its echo."""
        end.post(500, Operation.SEND, inline=[b"there and back"])
        found = self.take(end, 2)
        self.assertEqual({completion.status for completion in found}, {Status.SUCCESS})
        back = next(c for c in found if c.opcode is CompletionOpcode.RECEIVE)
        start = back.identifier * 64
        self.assertEqual(bytes(end.region.view[start : start + back.length]), b"there and back")
