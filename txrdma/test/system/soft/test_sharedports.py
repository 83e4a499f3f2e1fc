"""
Shared memory between real devices: atomics done by another process, receives shared, ports taken down.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from typing import Any

from txrdma.iba.types import RKey
from txrdma.iba.verbs import (
    AddressVector,
    CompletionOpcode,
    Operation,
    QPAttributes,
    QPState,
    Status,
)
from txrdma.soft.device import openSoftDevice
from txrdma.test.support.soft.neighbours import NeighbourCase
from txrdma.test.support.soft.pairs import ALL, End, INIT, RTR, RTS

ADD = Operation.FETCH_AND_ADD
RESULTS = 16384


def word(end: End, offset: int) -> int:
    """8 bytes of its memory, as a number."""
    return int.from_bytes(end.region.view[offset : offset + 8], sys.byteorder)


class AtomicTests(NeighbourCase):
    """Atomics that another process does for us."""

    def atomic(self, end: End, identifier: int, operation: Operation = ADD, **more: Any) -> None:
        """To the neighbour's memory, at 8192; C{result} finds in ours what was there before."""
        told = json.loads(self.told)
        end.post(
            identifier,
            operation,
            [end.segment(RESULTS + 8 * identifier, 8)],
            remoteAddress=told["address"] + more.pop("at", 8192),
            rkey=RKey(told["rkey"]),
            **more,
        )

    def result(self, end: End, identifier: int) -> int:
        """Of that atomic."""
        return word(end, RESULTS + 8 * identifier)

    def test_neighbour(self) -> None:
        """A process that sleeps is woken for them, and no completion of its own tells it anything."""
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

    def test_stopped(self) -> None:
        """They wait for a process that stands still, and those behind them do, too."""
        end = End(self.open())
        process = self.neighbour(end)
        os.kill(process.pid, signal.SIGSTOP)
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

    def test_killed(self) -> None:
        """When it is killed, they end."""
        end = End(self.open())
        process = self.neighbour(end)
        os.kill(process.pid, signal.SIGSTOP)
        for turn in range(20):
            self.atomic(end, turn, operand=1)
        os.kill(process.pid, signal.SIGKILL)
        self.runUntil(lambda: end.qp.state is QPState.ERR)
        found = [c for c in end.poll() if c.identifier < 20]
        flushed = [Status.WR_FLUSH_ERR] * (len(found) - 1)
        self.assertEqual([c.status for c in found], [Status.RETRY_EXC_ERR, *flushed])

    def test_refused(self) -> None:
        """What it does not do ends with the status that says why."""
        for at, status in ((8196, Status.REM_INV_REQ_ERR), (-8, Status.REM_ACCESS_ERR)):
            end = End(self.open())
            self.neighbour(end)
            self.atomic(end, 1, at=at, operand=1)
            self.assertEqual(self.take(end, 1)[0].status, status)
            self.assertIs(end.qp.state, QPState.ERR)

    def test_inOurTurns(self) -> None:
        """A device whose queues nobody looks at, or has armed, does them when its reactor turns."""
        one, other = self.pair()
        where = {"remoteAddress": other.region.address, "rkey": other.region.rkey}
        one.post(1, ADD, [one.segment(0, 8)], operand=5, **where)
        self.runUntil(lambda: word(other, 0) == 5)
        self.assertEqual(self.take(one, 1)[0].status, Status.SUCCESS)

    def test_amongWriters(self) -> None:
        """Atomics by shared memory and by RoCE v2 to one number of one device lose no sums of each other."""
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


class PortTests(NeighbourCase):
    """Ports that are taken down by command."""

    def test_neighbour(self) -> None:
        """Another process waits while our port is down, and goes on when it is up."""
        end = End(self.open())
        self.neighbour(end)
        told = json.loads(self.told)
        self.exchange(end)
        end.device.setPortEnabled(1, False)
        end.post(1, Operation.SEND, inline=[b"to and fro"])
        end.post(
            2, Operation.RDMA_READ, [end.segment(5000, 4)], remoteAddress=told["address"], rkey=told["rkey"]
        )
        began = time.monotonic()
        while time.monotonic() < began + 0.1:
            self.reactor.iterate(0.001)
            self.assertEqual(end.queue.poll(10), ())
        end.device.setPortEnabled(1, True)
        self.assertEqual({c.status for c in self.take(end, 3)}, {Status.SUCCESS})
        self.exchange(end)

    def test_killedMeanwhile(self) -> None:
        """That the other process has died meanwhile is noticed, at the latest when the port is up."""
        end = End(self.open())
        process = self.neighbour(end)
        end.device.setPortEnabled(1, False)
        self.end(process)
        end.device.setPortEnabled(1, True)
        self.runUntil(lambda: end.qp.state is QPState.ERR)

    def test_othersPort(self) -> None:
        """A device of two ports goes on by one of them while the other is down."""
        hub = openSoftDevice(self.reactor, ("127.0.0.1", "127.0.0.2"), port=0, route="shared-memory")
        self.addCleanup(hub.close)
        pairs = []
        for port in (1, 2):
            here, there = End(self.open()), End(hub)
            way = AddressVector(hub.gids(port)[0], dmac=hub.ports[port - 1].mac)
            there.qp.modify(QPAttributes(state=QPState.INIT, pkeyIndex=0, port=port, access=INIT.access))
            here.qp.modify(INIT)
            here.qp.modify(self.towards(way, there))
            back = AddressVector(here.device.gids(1)[0], port=port, dmac=here.device.mac)
            there.qp.modify(self.towards(back, here))
            for end in (here, there):
                end.qp.modify(RTS)
            pairs.append((here, there))
        regions = [there.region for _, there in pairs]
        for here, there in pairs:
            here.write(there, 1, 0, 8)
            self.assertEqual(self.take(here, 1)[0].status, Status.SUCCESS)
        hub.setPortEnabled(1, False)
        for number, (here, there) in enumerate(pairs):
            here.region.view[:8] = b"written%d" % number
            here.write(there, 2, 0, 8)
        self.assertEqual(self.take(pairs[1][0], 1)[0].status, Status.SUCCESS)
        self.assertEqual([bytes(region.view[:8]) for region in regions], [bytes(8), b"written1"])
        late = pairs[1][1].domain.allocateMemory(4096, ALL)
        hub.setPortEnabled(1, True)
        self.assertEqual(self.take(pairs[0][0], 1)[0].status, Status.SUCCESS)
        self.assertEqual(bytes(regions[0].view[:8]), b"written0")
        pairs[1][0].post(
            3,
            Operation.RDMA_WRITE,
            [pairs[1][0].segment(0, 8)],
            remoteAddress=late.address,
            rkey=late.rkey,
        )
        self.assertEqual(self.take(pairs[1][0], 1)[0].status, Status.SUCCESS)

    def towards(self, way: AddressVector, end: End) -> QPAttributes:
        attributes = {name: getattr(RTR, name) for name in RTR.given()}
        return QPAttributes(**attributes, address=way, destinationQPN=end.qp.number)

    def test_nothingStays(self) -> None:
        """A port that is closed while it is down leaves nothing behind."""
        device = openSoftDevice(self.reactor, port=0, route="shared-memory")
        one, other = End(device), End(self.open())
        one.join(other)
        other.join(one)
        device.setPortEnabled(1, False)
        other.post(1, Operation.SEND, inline=[b"."])
        device.close()
        self.runUntil(lambda: other.qp.state is QPState.ERR)
        self.assertEqual([c.status for c in other.poll()], [Status.RETRY_EXC_ERR])
