"""Scenarios about the fabric monitor in one process; each returns its result for JSON."""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from random import Random
from statistics import median
from struct import Struct
from typing import Any, Final

from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater
from twisted.internet.utils import getProcessOutput

from benchmarks.madports import ReadyPort
from benchmarks.monitorfabrics import fabrics, swept
from benchmarks.orders import cpuSeconds, ignored, memoryBytes, Orders
from benchmarks.scenarios import Result
from txrdma.iba.types import GUID
from txrdma.iba.verbs import Buffer
from txrdma.mad.agent import MADAgent
from txrdma.mad.layouts.messages import ClassPortInfo
from txrdma.monitor.config import parseConfig
from txrdma.monitor.diagnosis.thresholds import ErrorThresholds
from txrdma.monitor.iterations import IterationTimes
from txrdma.monitor.reading.counterreader import CounterReader
from txrdma.monitor.reading.settings import PollerSettings
from txrdma.monitor.reading.statistics import PollerStatistics
from txrdma.monitor.series.exposition import CounterExposition, exposed, guidText
from txrdma.monitor.series.historystore import HistoryStore
from txrdma.monitor.series.level import Level
from txrdma.monitor.series.rows import COUNTERS, Row
from txrdma.sim.fabric import SimulatedFabric
from txrdma.sim.nets.fattree import fatTree
from txrdma.tap.monitor import MonitorService

_DATA: Final = 64
_COUNTS: Final = Struct(">QQQQ").pack_into
_FIRST: Final = _DATA + 8
"""Offset of PortXmitData in a datagram; PortRcvData and the packet counters follow."""

_EXPORTED: Final = 3_477
"""Number of ports exported to Prometheus, with 76,494 series."""

_ABLE: Final = ClassPortInfo(capabilityMask=0xFFFF, capabilityMask2=0x7FFFFFF).encode()
_CLASS_PORT_INFO: Final = ClassPortInfo.attributeID
_RESPONSE: Final = 0x80
_WEEK: Final = 7 * 86400
_MINUTE: Final = 60
_SETTLED: Final = 2
"""Rounds before a monitor is measured: the first one reads capabilities of agents."""

_RUNNING: Final = """
web.listen = "tcp:0:interface=127.0.0.1"
history.file = "{folder}/history.db"
[poll]
interval = {interval}
outstanding = 256
"""
_PORTS: Final = 30
"""Number of ports of the history; rows are sorted by port, so others would cost nothing."""


class CountersPort(ReadyPort):
    """A port with agents that support 64-bit counters, which grow with each answer."""

    def __init__(self, reactor: IReactorTime) -> None:
        super().__init__(reactor)
        self._count = 0

    def answers(self, datagram: Buffer) -> Sequence[bytes]:
        answer = bytearray(datagram)
        answer[3] |= _RESPONSE
        if answer[17] == _CLASS_PORT_INFO:
            answer[_DATA : _DATA + len(_ABLE)] = _ABLE
        else:
            self._count += 1
            count = self._count
            _COUNTS(answer, _FIRST, count, count, count, count)
        return (bytes(answer),)


async def reading(reactor: Any, orders: Orders) -> Result:
    """CPU seconds to read a port's counters by its meter, and to render the text of all ports."""
    fabric = swept(orders["hosts"])
    agent = MADAgent(reactor, CountersPort(reactor))
    reader = CounterReader(
        *(reactor, agent, ErrorThresholds(), PollerSettings(timeoutSeconds=5.0), PollerStatistics()),
        *(ignored, ignored, ignored),
    )
    nodes = [node for node in fabric.nodes.values() if node.lid]
    rounds = []
    for turn in range(orders["rounds"] + 2):
        before, cpu = reader.statistics.readings, cpuSeconds()
        await reader.read(nodes, 1, ())
        if turn > 1:  # the first round reads capabilities, the second one ports without links
            linked = reader.statistics.readings - before
            rounds.append((cpuSeconds() - cpu) / linked)
    exposition = CounterExposition()
    some = dict(islice(reader.meters.items(), _EXPORTED))
    texts = []
    for _ in range(orders["rounds"] + 1):  # the first rendering creates the formats
        await reader.read(nodes, 1, ())
        begun = time.perf_counter()
        text = "".join(exposed(exposition.families(some)))
        texts.append(time.perf_counter() - begun)
    agent.close()
    if reader.statistics.silences:
        raise RuntimeError(f"{reader.statistics.silences} agents were silent")
    return {
        "value": median(rounds),
        "ports": linked,
        "nodes": len(nodes),
        "text": median(texts[1:]),
        "series": text.count("\n") - 2 * text.count("# TYPE"),
    }


async def history(reactor: Any, orders: Orders) -> Result:
    """Seconds of a query for a week of one counter of one port, by minutes."""
    days: int = orders["days"]
    level = Level("minutes", 0, 86400, 10 * _WEEK)
    places = [(GUID.fromInt(number + 1), 1) for number in range(_PORTS)]
    values = [Random(0).randrange(1 << 40) for _ in COUNTERS]
    with tempfile.TemporaryDirectory() as folder:
        store = HistoryStore(str(Path(folder) / "history.db"), [level])
        for day in range(days):
            begin = day * 86400
            store.write(
                (
                    Row(place, at, (60.0, *values, 1e9, 1e9))
                    for at in range(begin, begin + 86400, _MINUTE)
                    for place in places
                ),
                begin,
            )
        taken = []
        for place in places[: orders["rounds"]]:
            begun = time.perf_counter()
            points = store.series(place, "portXmitData", 0, days * 86400)
            taken.append(time.perf_counter() - begun)
        store.close()
    if len(points) != days * 1440:
        raise RuntimeError(f"{len(points)} points of {days * 1440}")
    return {"value": median(taken), "points": len(points)}


async def _shown(reactor: Any, service: MonitorService, orders: Orders) -> Deferred[bytes]:
    """
    Let browsers show pages: a quarter of them the overview, a quarter the busiest links, the others switches
    and ports, of which each has another one. Returns after their first round, with what they will print.
    """
    fabric, address = service.poller.fabric, await service.address()
    assert fabric is not None and isinstance(address, IPv4Address)
    switches = [guidText(node.guid) for node in fabric.switches()]
    several = ("/", "/links?sort=-load", "/nodes/{}", "/nodes/{}/ports/1")
    paths = [several[at % 4].format(switches[at % len(switches)]) for at in range(orders["browsers"])]
    words = (str(address.port), str(orders["rounds"] + 1), json.dumps(paths))
    done: Deferred[bytes] = getProcessOutput(
        sys.executable, ("-m", "benchmarks.browsers", *words), dict(os.environ)
    )
    while len(service.site.hub.readers) < orders["browsers"] and not done.called:
        await deferLater(reactor, 0.1)
    turns = service.poller.statistics.turns
    while service.poller.statistics.turns < turns + 1 and not done.called:
        await deferLater(reactor, orders["interval"] / 10)
    return done


def _iterations(times: IterationTimes) -> dict[str, int]:
    """Return the number of reactor iterations, and of those over 50 ms."""
    text = "".join(times.durations.family().pieces)
    counts = {bound: int(count) for bound, count in re.findall(r'le="(.*?)"\} (\d+)', text)}
    return {"count": counts["+Inf"], "over": counts["+Inf"] - counts["0.05"]}


async def running(reactor: Any, orders: Orders) -> Result:
    """
    Share of a core that a monitor with a history needs, including the simulation of its fabric, and, with
    C{browsers}, what it sends to as many browsers in another process.

    The share is CPU time of a round divided by the interval: wall time would include other load.
    """
    interval: float = orders["interval"]
    with tempfile.TemporaryDirectory() as folder:
        config = parseConfig(_RUNNING.format(interval=interval, folder=folder))
        fabric = SimulatedFabric(reactor, fatTree(orders["hosts"], orders["radix"]), latencySeconds=0.0001)
        fabric.traffic(1e8, 1e5)
        service = MonitorService(reactor, config, fabric.attach)
        iterations = IterationTimes(reactor)
        service.startService()
        statistics = service.poller.statistics
        begun = time.perf_counter()
        while statistics.turns < _SETTLED:
            await deferLater(reactor, interval / 10)
        ready = time.perf_counter() - begun
        showing = await _shown(reactor, service, orders) if orders.get("browsers") else None
        iterations.startService()
        before, cpu, began = asdict(statistics), cpuSeconds(), time.perf_counter()
        turns = []
        while statistics.turns < before["turns"] + orders["rounds"]:
            known = statistics.turns
            await deferLater(reactor, interval / 10)
            if statistics.turns > known:
                turns.append(statistics.turnSeconds)
        seconds, spent = time.perf_counter() - began, cpuSeconds() - cpu
        iterations.stopService()
        browsers = None if showing is None else json.loads(await showing)
        after, memory = asdict(statistics), memoryBytes()[0]
        await service.stopService()
        fabric.close()
    return {
        "value": spent / len(turns) / interval,
        "busy": spent / seconds,
        "turn": median(turns),
        "ready": ready,
        "overruns": after["overruns"] - before["overruns"],
        "readings": (after["readings"] - before["readings"]) / len(turns),
        "silences": after["silences"] - before["silences"],
        "sweeps": after["sweeps"] - before["sweeps"],
        "iterations": _iterations(iterations),
        "browsers": browsers,
        "memory": memory,
    }


scenarios = {
    "monitor-reading": reading,
    "monitor-history": history,
    "monitor-running": running,
    "monitor-fabrics": fabrics,
}
