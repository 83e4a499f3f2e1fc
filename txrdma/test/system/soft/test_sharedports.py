"""
Shared memory between real devices: atomics executed by another process.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

from txrdma.iba.types import RKey
from txrdma.iba.verbs import (
    CompletionOpcode,
    Operation,
    QPState,
    Status,
)
from txrdma.soft.device import openSoftDevice
from txrdma.test.support.processes import suspend
from txrdma.test.support.soft.neighbours import NeighbourCase
from txrdma.test.support.soft.pairs import ALL, End

ADD = Operation.FETCH_AND_ADD
RESULTS = 16384


def word(end: End, offset: int) -> int:
    """Return 8 bytes of its memory as a number."""
    return int.from_bytes(end.region.view[offset : offset + 8], sys.byteorder)


class AtomicTests(NeighbourCase):
    """Atomics executed by another process."""

    slowBecause = "each test starts another process"

    def atomic(self, end: End, identifier: int, operation: Operation = ADD, **more: Any) -> None:
        """Post an atomic on the other process' memory at 8192; C{result} returns the previous value."""
        reported = json.loads(self.reported)
        end.post(
            identifier,
            operation,
            [end.segment(RESULTS + 8 * identifier, 8)],
            remoteAddress=reported["address"] + more.pop("at", 8192),
            rkey=RKey(reported["rkey"]),
            **more,
        )

    def result(self, end: End, identifier: int) -> int:
        return word(end, RESULTS + 8 * identifier)

    def test_sleepingProcessIsWokenForAtomics(self) -> None:
        end = End(self.open())
        self.neighbour(end)
        for turn in range(5):
            self.atomic(end, turn, operand=10)
            self.assertEqual([c.status for c in self.take(end, 1)], [Status.SUCCESS])
        self.assertEqual([self.result(end, turn) for turn in range(5)], [0, 10, 20, 30, 40])
        self.atomic(end, 5, Operation.COMPARE_AND_SWAP, compare=50, operand=7)
        self.atomic(end, 6, Operation.COMPARE_AND_SWAP, compare=50, operand=8)
        self.take(end, 2)
        self.assertEqual([self.result(end, 5), self.result(end, 6)], [50, 7])
        self.exchange(end)

    def test_atomicsWaitWhileProcessIsStopped(self) -> None:
        end = End(self.open())
        process = self.neighbour(end)
        suspend(process.pid)
        for turn in range(20):
            self.atomic(end, turn, operand=1)
        end.post(50, Operation.SEND, inline=[b"behind"])
        for _ in range(20):
            self.assertEqual(end.queue.poll(10), ())
            self.reactor.iterate(0.001)
        os.kill(process.pid, signal.SIGCONT)
        found = self.take(end, 22)
        atomics = [c.identifier for c in found if c.opcode is CompletionOpcode.FETCH_AND_ADD]
        self.assertEqual(atomics, list(range(20)))
        self.assertEqual([self.result(end, turn) for turn in range(20)], list(range(20)))

    def test_atomicsFailWhenProcessIsKilled(self) -> None:
        end = End(self.open())
        process = self.neighbour(end)
        suspend(process.pid)
        for turn in range(20):
            self.atomic(end, turn, operand=1)
        os.kill(process.pid, signal.SIGKILL)
        self.runUntil(lambda: end.qp.state is QPState.ERR)
        found = [c for c in end.poll() if c.identifier < 20]
        flushed = [Status.WR_FLUSH_ERR] * (len(found) - 1)
        self.assertEqual([c.status for c in found], [Status.RETRY_EXC_ERR, *flushed])

    def test_atomicsAreExecutedInReactorOfUnpolledDevice(self) -> None:
        one, other = self.pair()
        where = {"remoteAddress": other.region.address, "rkey": other.region.rkey}
        one.post(1, ADD, [one.segment(0, 8)], operand=5, **where)
        self.runUntil(lambda: word(other, 0) == 5)
        self.assertEqual(self.take(one, 1)[0].status, Status.SUCCESS)

    def test_atomicsOverBothRoutesLoseNoAdditions(self) -> None:
        home = openSoftDevice(self.reactor, port=0)
        away = openSoftDevice(self.reactor, port=0, route="rocev2")
        near = self.open()
        for device in (home, away):
            self.addCleanup(device.close)
        ends = []
        for device in (near, away):
            here, there = End(device), End(home)
            here.join(there)
            there.join(here)
            ends.append((here, there))
        (near1, home1), (away1, _) = ends
        self.assertEqual([near1.qp.route, away1.qp.route], ["shared-memory", "rocev2"])
        domains = {end.domain for _, end in ends}
        self.assertEqual(len(domains), 2)
        buffer = memoryview(bytearray(64))
        regions = [end.domain.registerMemory(buffer, ALL) for _, end in ends]
        for turn in range(50):
            for (here, _), region in zip(ends, regions, strict=True):
                where = {"remoteAddress": region.address, "rkey": region.rkey}
                here.post(turn, ADD, [here.segment(8 * turn, 8)], operand=1, **where)
        for here, _ in ends:
            self.assertEqual({c.status for c in self.take(here, 50)}, {Status.SUCCESS})
        self.assertEqual(int.from_bytes(buffer[:8], sys.byteorder), 100)
        results = [word(here, 8 * turn) for here, _ in ends for turn in range(50)]
        self.assertEqual(sorted(results), list(range(100)))
