"""Scenarios about management datagrams in one process; each returns its result for JSON."""

from __future__ import annotations

import gc
import random
import time
import tracemalloc
from collections.abc import Callable, Iterator
from enum import Enum
from itertools import chain
from statistics import median
from typing import Any, Final

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.python.failure import Failure

from benchmarks.madports import AdministrationPort, NodeInfoPort
from benchmarks.orders import cpuSeconds, memoryBytes, Orders
from benchmarks.scenarios import Result
from txrdma.commands.common.attributefields import attributesOf
from txrdma.fabric.discovery import Sweep
from txrdma.iba.path import IBDRPath
from txrdma.kit.wire import Layout
from txrdma.mad.agent import MADAgent
from txrdma.mad.layouts import messages
from txrdma.mad.layouts.attributes import allAttributes
from txrdma.mad.layouts.sa import PathRecord
from txrdma.mad.layouts.smp import NodeInfo
from txrdma.mad.paths import toSA
from txrdma.mad.ports import openMADPort
from txrdma.sim.clock import SimulatedClock
from txrdma.sim.fabric import SimulatedFabric
from txrdma.sim.nets.fattree import fatTree

WARMING: Final = 0.3
"""Seconds at the beginning that are not counted."""

CODEC_REPEATS: Final = 5


class Asking:
    """
    Maintains a number of outstanding C{SubnGet(NodeInfo)}: each answer triggers the next request.

    Requests go round-robin to the local port, to its switch, and to all nodes one hop further.
    """

    def __init__(self, agent: MADAgent, hops: int) -> None:
        self._agent = agent
        ways = chain(((), (1,)), ((1, port) for port in range(2, hops + 1)))
        self._routes = [IBDRPath(drPath=way) for way in ways]
        self._next = 0
        self._isOver = False
        self.answered = self.failed = 0

    def begin(self, outstanding: int) -> None:
        """Send the first requests."""
        for _ in range(outstanding):
            self._ask()

    def stop(self) -> None:
        """Send no more requests."""
        self._isOver = True

    def _ask(self) -> None:
        if self._isOver:
            return
        number = self._next
        self._next = number + 1
        route = self._routes[number % len(self._routes)]
        self._agent.SubnGet(NodeInfo, route).addCallbacks(self._answered, self._refused)

    def _answered(self, info: NodeInfo) -> None:
        assert info.numPorts
        self.answered += 1
        self._ask()

    def _refused(self, failure: Failure) -> None:
        if not self._isOver:
            self.failed += 1


async def rate(reactor: Any, orders: Orders) -> Result:
    """Calls per second of the public agent over a named port, or over a port with prepared answers."""
    device = orders.get("device")
    port = openMADPort(reactor, device) if device else NodeInfoPort(reactor)
    agent = MADAgent(reactor, port)
    asking = Asking(agent, orders.get("hops", 36))
    try:
        asking.begin(orders["outstanding"])
        await _later(reactor, WARMING)
        begun, cpu, answered = time.perf_counter(), cpuSeconds(), asking.answered
        await _later(reactor, orders["seconds"])
        seconds, cpu, answered = time.perf_counter() - begun, cpuSeconds() - cpu, asking.answered - answered
    finally:
        asking.stop()
        agent.close()
    if asking.failed:
        raise RuntimeError(f"{asking.failed} calls have failed")
    return {"value": answered / seconds, "cpu": cpu / answered, "busy": cpu / seconds}


def _later(reactor: Any, seconds: float) -> Deferred[None]:
    done: Deferred[None] = Deferred()
    reactor.callLater(seconds, done.callback, None)
    return done


async def table(reactor: Any, orders: Orders) -> Result:
    """Seconds from the request of a table to its records."""
    clock = Clock()
    port = AdministrationPort(clock, orders["records"])
    agent = MADAgent(clock, port)
    gc.collect()
    begun, cpu = time.perf_counter(), cpuSeconds()
    answer = agent.SubnAdmGetTable(PathRecord, toSA(port.endPort))
    while not answer.called:
        clock.advance(0)
    seconds, cpu = time.perf_counter() - begun, cpuSeconds() - cpu
    records = await answer
    agent.close()
    assert [record.dlid for record in records] == [n % 0xBFFF + 1 for n in range(orders["records"])]
    assert all(type(record) is PathRecord and record.mtu == 5 for record in records)
    return {"value": seconds, "cpu": cpu, "segments": len(port.segments)}


async def sweep(reactor: Any, orders: Orders) -> Result:
    """Sweep a simulated fabric, in simulated time or in the reactor's."""
    isReal = orders["real"]
    clock = reactor if isReal else SimulatedClock()
    fabric = SimulatedFabric(
        clock, fatTree(orders["hosts"]), latencySeconds=orders["latency"], isManaged=False
    )
    agent = MADAgent(clock, fabric.attach())
    gc.collect()
    gc.freeze()
    begun, cpu = clock.seconds(), cpuSeconds()
    done = Sweep(agent, orders["outstanding"]).run()
    while not isReal and not done.called:
        clock.advance(max(0.0, clock.getDelayedCalls()[0].getTime() - clock.seconds()))
    found = await done
    seconds, cpu = clock.seconds() - begun, cpuSeconds() - cpu
    agent.close()
    fabric.close()
    if len(found.nodes) != len(fabric.nodes) or found.problems:
        raise RuntimeError(f"{found} of {fabric}")
    limit = fabric.wire.datagrams * orders["latency"] / orders["outstanding"]
    return {"value": seconds, "limit": limit, "mads": fabric.wire.datagrams, "busy": cpu / seconds}


async def memory(reactor: Any, orders: Orders) -> Result:
    """
    Memory per port of a swept fabric, in bytes: its objects, or the growth of the process.

    C{tracemalloc} counts objects and needs memory itself, so only one of both can be measured.
    """
    agent = MADAgent(reactor, openMADPort(reactor, orders["device"]))
    sweep = Sweep(agent)
    gc.collect()
    before = memoryBytes()[0]
    most = 0
    if orders["traced"]:
        tracemalloc.start()
    fabric = await sweep.run()
    agent.close()
    del sweep, agent
    gc.collect()
    if orders["traced"]:
        taken, most = tracemalloc.get_traced_memory()
    else:
        taken = memoryBytes()[0] - before
    ports = sum(1 for _ in fabric.ports())
    return {"value": taken / ports, "most": most / ports, "ports": ports, "nodes": len(fabric.nodes)}


async def codecs(reactor: Any, orders: Orders) -> Result:
    """Microseconds to decode and encode each structure, from bytes generated by a seed."""
    every = attributesOf(None)  # imports the modules that declare structures
    kinds = dict.fromkeys(chain(every, allAttributes().values(), _frames()))
    seconds: float = orders["seconds"]
    found = {}
    for kind in sorted(kinds, key=lambda kind: kind.__name__):
        raw = _sample(kind)
        one = kind.decode(raw)
        found[kind.__name__] = {
            "bytes": kind.size,
            "fields": len(kind.fields),
            "decode": _microseconds(lambda kind=kind, raw=raw: kind.decode(raw), seconds),  # type: ignore[misc]  # bound now
            "encode": _microseconds(one.encode, seconds),
        }
    return {"value": found}


def _frames() -> Iterator[type[Layout]]:
    for thing in vars(messages).values():
        if isinstance(thing, type) and issubclass(thing, Layout) and hasattr(thing, "size"):
            yield thing


def _sample(kind: type[Layout]) -> bytes:
    """Return bytes that are valid for a structure: random numbers and known codes."""
    chance = random.Random(kind.__name__)
    zero = kind()
    codes = {
        field.name: chance.choice(list(field.type))
        for field in kind.fields
        if field.count is None and issubclass(field.type, Enum) and len(field.type)
    }
    raw = bytearray(chance.randbytes(kind.size))
    for field in kind.fields:
        if field.count is None and issubclass(field.type, Layout):
            codes[field.name] = field.type.decode(_sample(field.type))
        elif field.count is not None and issubclass(field.type, (Enum, Layout)):
            codes[field.name] = getattr(zero, field.name)
    return kind.decode(raw).replace(**codes).encode()


def _microseconds(call: Callable[[], object], seconds: float) -> float:
    """Return the median of some runs, each of about that many seconds."""
    count = 1
    while (taken := _taken(call, count)) < seconds / 4:
        count *= 2
    count = max(1, int(count * seconds / taken))
    return median(_taken(call, count) for _ in range(CODEC_REPEATS)) / count * 1e6


def _taken(call: Callable[[], object], count: int) -> float:
    begun = time.perf_counter()
    for _ in range(count):
        call()
    return time.perf_counter() - begun


scenarios = {
    "rate": rate,
    "table": table,
    "sweep": sweep,
    "memory": memory,
    "codecs": codecs,
}
