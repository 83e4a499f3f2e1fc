"""
Tens of thousands of calls over an unreliable wire leave nothing behind.

Agent, long messages, schedule and server run on a L{Clock} by a seed, which failures print.
"""

from __future__ import annotations

import gc
import os
import sys
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import Any

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import Clock
from twisted.logger import Logger
from twisted.trial.unittest import SynchronousTestCase

from txrdma.iba.types import LID
from txrdma.mad.agent import MADAgent
from txrdma.mad.core.recent import MOST_REMEMBERED
from txrdma.mad.errors import MADFailure, MADRefusal
from txrdma.mad.layouts.attributes import ManagementClass, Method
from txrdma.mad.layouts.messages import ClassPortInfo, MADRequest, Notice
from txrdma.mad.layouts.pma import PortCounters
from txrdma.mad.layouts.sa import MultiPathRecord, NodeRecord, PathRecord
from txrdma.mad.layouts.smp import NodeInfo
from txrdma.mad.schedule import MADSchedule
from txrdma.mad.server import MADServer
from txrdma.test.support.mad.faulty import assertEmpty
from txrdma.test.support.mad.pairs import Answers, TO_1, TO_2, Wire

SEED = int(os.environ.get("SOAK_SEED", "4"))
CALLS = int(os.environ.get("SOAK_CALLS", "6000"))
"""Calls of each round; the first round allocates permanent objects."""

ROUNDS = 4
GROWTH = 500
"""Largest growth in objects and memory blocks after the first round: one in 36 calls."""

BYTES_A_CALL = 16
"""Largest growth in bytes for each call, measured in a shorter run, because the measurement is slow."""

STEP = 0.002


class Soak:
    """Two ends, each of which calls and serves."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.clock = Clock()
        self.wire = Wire(self.clock)
        self.wire.change = self.change
        self.wire.lose = lambda datagram: self.random.random() < 0.05
        self.agents = [MADAgent(self.clock, port, timeoutSeconds=0.4, retries=2) for port in self.wire.ports]
        self.servers = [MADServer(agent, answerSeconds=3.0) for agent in self.agents]
        self.ways = (TO_2, TO_1)
        self.later: list[Deferred[object]] = []
        self.ends: Counter[str] = Counter()
        self.received = 0
        answers = Answers(self.handle)
        self.asked = answers.asked
        for server in self.servers:
            for managementClass in (ManagementClass.SUBN_LID, ManagementClass.PERFORMANCE):
                server.handle(managementClass, answers, (Method.GET, Method.SET))
            methods = (Method.GET, Method.GET_TABLE, Method.GET_MULTI)
            server.handle(ManagementClass.SUBN_ADM, answers, methods)
            server.listen(self.noticeReceived)

    def noticeReceived(self, notice: Notice, path: object) -> None:
        self.received += 1

    def change(self, datagram: bytes) -> list[bytes]:
        """Duplicate, truncate or corrupt a datagram behind its header."""
        self.wire.sent.clear()
        chance = self.random.random()
        if chance < 0.04:
            return [datagram, datagram]
        if chance < 0.05:
            return [datagram[: self.random.randrange(256)]]
        if chance < 0.06:
            at = self.random.randrange(24, 60)
            return [datagram[:at] + self.random.randbytes(1) + datagram[at + 1 :]]
        return [datagram]

    def handle(self, request: MADRequest) -> object:
        """Answer, refuse, redirect, be busy, fail, answer late or never."""
        self.asked.clear()
        chance = self.random.random()
        if chance < 0.05:
            raise MADRefusal(1)
        if chance < 0.08:
            raise MADRefusal(0x0C)
        if chance < 0.10:
            raise MADRefusal(2, payload=ClassPortInfo(redirectLID=LID(request.path.dlid)))
        if chance < 0.20:
            later: Deferred[object] = Deferred()
            if chance < 0.19:
                self.clock.callLater(self.random.random(), self.fire, later, self.payload(request))
            return later
        return self.payload(request)

    @staticmethod
    def fire(later: Deferred[object], payload: object) -> None:
        if not later.called:
            later.callback(payload)

    def payload(self, request: MADRequest) -> object:
        if request.header.method == Method.GET_MULTI:
            return [PathRecord(dlid=LID(n)) for n in range(self.random.randrange(20))]
        if request.header.method == Method.GET_TABLE:
            return [NodeRecord(lid=LID(n)) for n in range(self.random.randrange(60))]
        return request.payload

    async def work(self, schedule: MADSchedule, way: int) -> None:
        """Make one random call with a schedule."""
        path = self.ways[way]
        name, payload = self.random.choice(
            (
                ("SubnGet", NodeInfo),
                ("PerformanceSet", PortCounters(portSelect=1)),
                ("PerformanceGet", PortCounters),
                ("SubnTrap", Notice(isGeneric=True, trapNumber=128)),
                ("SubnAdmGet", NodeRecord),
                ("SubnAdmGetTable", NodeRecord),
                ("SubnAdmGetMulti", MultiPathRecord(sgidCount=1, dgidCount=1)),
                ("PerformanceGet", ClassPortInfo),
                ("SubnGet", PortCounters),
            )
        )
        call = schedule.call(name, payload, path)
        if self.random.random() < 0.05:
            self.clock.callLater(self.random.random(), call.cancel)
        try:
            await call
            self.ends["answered"] += 1
        except (MADFailure, CancelledError) as error:
            self.ends[type(error).__name__] += 1
        except Exception as error:
            self.ends[type(error).__name__] += 1

    def round(self, calls: int) -> None:
        """Make so many calls, half in each direction; then wait for late datagrams."""
        done: list[Any] = []
        for way in (0, 1):
            schedule = MADSchedule(self.agents[way], maxOutstanding=30)
            works = (self.work(schedule, way) for _ in range(calls // 2))
            schedule.run(mqueue=works).addBoth(done.append)
        while len(done) < 2:
            self.clock.advance(STEP)
        self.wire.lose = lambda datagram: False
        for _ in range(1000):
            self.clock.advance(1.0)
        self.wire.lose = lambda datagram: self.random.random() < 0.05
        assert done == [None, None], f"a schedule ended with {done}"


class SoakTests(SynchronousTestCase):
    """Leftovers of all calls."""

    def setUp(self) -> None:
        # Where nobody has begun to log, as in trial's workers, Twisted keeps the last 65,536 events.
        self.patch(Logger, "emit", lambda logger, level, format=None, **values: None)

    def test_calls(self) -> None:
        """No transactions, timers, partial messages, handlers or objects remain, for any result of calls."""
        soak = Soak(SEED)
        counts: list[int] = []
        sizes: list[int] = []
        for _ in self.rounds(soak):
            gc.collect()
            counts.append(len(gc.get_objects()))
            sizes.append(sys.getallocatedblocks())
        reported = f"seed {SEED}: {dict(soak.ends)}, {counts} objects, {sizes} blocks"
        self.assertEqual(sum(soak.ends.values()), ROUNDS * CALLS, reported)
        errors = ("MADTimeoutError", "MADError", "MADClassError", "CancelledError", "InvalidRequest")
        for kind in ("answered", *errors):
            self.assertGreater(soak.ends[kind], CALLS // 1000, reported)
        self.assertGreater(soak.received, 0)
        self.assertLess(counts[-1] - counts[0], GROWTH, reported)
        self.assertLess(sizes[-1] - sizes[0], GROWTH, reported)

    def test_bytes(self) -> None:
        """The memory for long messages, which are few objects, does not grow."""
        soak = Soak(SEED + 1)
        calls = CALLS // 4
        soak.round(calls)
        tracemalloc.start()
        self.addCleanup(tracemalloc.stop)
        soak.round(calls)
        gc.collect()
        before, _ = tracemalloc.get_traced_memory()
        soak.round(calls)
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
        self.assertLess(after - before, calls * BYTES_A_CALL, f"seed {SEED + 1}")

    def rounds(self, soak: Soak) -> Iterator[None]:
        """After each round nothing is pending, and tables are within their bounds."""
        for _ in range(ROUNDS):
            soak.round(CALLS)
            for agent, server in zip(soak.agents, soak.servers, strict=True):
                assertEmpty(self, agent)
                self.assertEqual(agent._core._transfers._incoming, {})
                self.assertEqual(agent._core._transfers._outgoing, {})
                self.assertEqual(server._pending, {})
                self.assertLessEqual(len(server._notices), MOST_REMEMBERED)
                self.assertLessEqual(len(agent._core._timeouts._slow), 2)
            self.assertEqual(soak.clock.getDelayedCalls(), [])
            yield
