"""
Scenario of monitors of several fabrics in one process: cost of requests, and how they block others. The first
fabric has a history of a year.
"""

from __future__ import annotations

import gc
import json
import sys
import tempfile
import time
from pathlib import Path
from random import Random
from statistics import median
from typing import Any, Final

from twisted.internet.task import deferLater
from twisted.internet.utils import getProcessOutput
from twisted.web.server import Site

from benchmarks.orders import cpuSeconds, memoryBytes, Orders
from benchmarks.scenarios import Result
from txrdma.fabric.discovery import Sweep
from txrdma.fabric.model import Fabric
from txrdma.fabric.slurm import hostList, hostName
from txrdma.kit.values import replace
from txrdma.mad.agent import MADAgent
from txrdma.monitor.config import parseConfig
from txrdma.monitor.diagnosis.topologywatch import TopologyWatch
from txrdma.monitor.series.exposition import guidText
from txrdma.monitor.series.historystore import HistoryStore
from txrdma.sim.clock import SimulatedClock
from txrdma.sim.fabric import SimulatedFabric
from txrdma.sim.nets.fattree import fatTree, RADIX
from txrdma.tap.fabrics import FabricsService

_CONFIG: Final = """
web.listen = ""
[fabrics.f0.history]
file = "{folder}/history.db"
[fabrics.f0.slurm]
jobs = "cat {folder}/jobs"
[poll]
interval = 600
survey = 0
notices = false
outstanding = 256
"""

_STATES: Final = 250_000
"""Number of states of nodes and links in the history."""

_JOBS: Final = 10_000
_HOSTS_OF_JOB: Final = 4
_YEAR: Final = 365 * 86400

_ROUNDS: Final = 2
"""Rounds of readings before requests; with the second one, rates are known."""

_PATHS: Final = {
    "fabrics": "/",
    "page": "/api/v1/ports",
    "search": "/api/v1/ports?search=h00077",
    "order": "/api/v1/ports?sort=-transmitRate",
    "last": "/api/v1/ports?sort=name&offset={last}",
    "links": "/fabrics/f0/links?sort=-load",
    "overview": "/fabrics/f0/",
    "topology": "/fabrics/f0/api/v1/topology",
    "past": "/fabrics/f0/topology?from={past}",
    "difference": "/fabrics/f0/topology?from={past}&to=now",
    "switch": "/fabrics/f0/nodes/{switch}",
    "radius": "/fabrics/f0/api/v1/blast-radius?guid={upper}",
    "findings": "/metrics?collect[]=findings&collect[]=monitor",
    "metrics": "/metrics",
}
"""Requests that are measured, by their names."""

_CLIENT: Final = """
import asyncio, json, sys, time
async def get(port, path, isCompressed):
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    accepted = "Accept-Encoding: gzip\\r\\n" if isCompressed else ""
    head = f"GET {path} HTTP/1.1\\r\\nHost: localhost\\r\\n{accepted}Connection: close\\r\\n\\r\\n"
    writer.write(head.encode())
    head, size = await reader.read(1 << 16), 0
    assert head.startswith(b"HTTP/1.1 200 "), head[:200]
    while not path.endswith("/events") and (piece := await reader.read(1 << 20)):
        size += len(piece)
    return size + len(head), writer
async def main(port, path, count):
    readers = [await get(port, "/fabrics/f0/api/v1/events", False) for _ in range(count if count > 1 else 0)]
    begun = time.perf_counter()
    got = await asyncio.gather(*(get(port, path, True) for _ in range(count)))
    print(json.dumps([time.perf_counter() - begun, sum(size for size, _writer in got) / count]))
asyncio.run(main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
"""
"""Program that requests a path as often at once as requested, with a reader of events for each."""


def swept(hosts: int, radix: int = RADIX) -> Fabric:
    """Return the model of a fat tree after a sweep."""
    clock = SimulatedClock()
    agent = MADAgent(clock, SimulatedFabric(clock, fatTree(hosts, radix)).attach())
    found: list[Fabric] = []
    Sweep(agent).run().addCallback(found.append)
    while not found:
        clock.advance(clock.calls[0].getTime() - clock.seconds())
    return found[0]


def _fill(folder: Path, fabric: Fabric, now: float) -> None:
    """Store a year in which links were lost and have returned, and jobs, of which one has all hosts."""
    begin, random = now - _YEAR, Random(0)
    events = [event for event in TopologyWatch().follow(fabric, begin) if event is not None]
    links = [event for event in events if event.kind == "link-came"]
    count = max(0, _STATES - len(events)) // 2
    for number in range(count):
        at, link = begin + (number + 1) * _YEAR / (count + 2), random.choice(links)
        events.append(replace(link, at=at, kind="link-gone", text="it is gone"))
        events.append(replace(link, at=at + 1.0, text="it is back"))
    store = HistoryStore(str(folder / "history.db"))
    store.append(events)
    store.close()
    names = [hostName(node.description) for node in fabric.hosts()]
    jobs = [random.sample(names, min(_HOSTS_OF_JOB, len(names))) for _ in range(_JOBS)] + [names]
    lines = [f"{number}:user:{hostList(job)}:job\n" for number, job in enumerate(jobs)]
    (folder / "jobs").write_text("".join(lines))


class _Iterations:
    """Measures the processor time of reactor iterations, without that of garbage collections."""

    def __init__(self, reactor: Any) -> None:
        self._reactor = reactor
        self._collecting = self._began = 0.0
        self.seconds: list[float] = []
        self.collections: list[float] = []
        gc.callbacks.append(self._collected)
        self._before = time.process_time()
        self._next()

    def _collected(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._began = time.process_time()
        else:
            self.collections.append(time.process_time() - self._began)
            self._collecting += self.collections[-1]

    def _next(self) -> None:
        now = time.process_time()
        self.seconds.append(now - self._before - self._collecting)
        self._before, self._collecting = now, 0.0
        self._call = self._reactor.callLater(0.0, self._next)

    def stop(self) -> None:
        self._call.cancel()
        gc.callbacks.remove(self._collected)


async def _asked(reactor: Any, port: int, path: str, count: int) -> Result:
    """Requests for a path at once: seconds, bytes of an answer, processor time, and the longest iteration."""
    iterations, cpu = _Iterations(reactor), cpuSeconds()
    output = await getProcessOutput(
        sys.executable, ("-c", _CLIENT, str(port), path, str(count)), errortoo=True
    )
    cpu = cpuSeconds() - cpu
    iterations.stop()
    seconds, size = json.loads(output)
    longest = sorted(iterations.seconds)
    return {
        "seconds": seconds,
        "bytes": size,
        "cpu": cpu,
        "longest": longest[-1],
        "over": sum(one > 0.05 for one in longest),
        "collection": max(iterations.collections, default=0.0),
    }


async def fabrics(reactor: Any, orders: Orders) -> Result:
    """
    Requests to monitors of C{fabrics} simulated fabrics with C{hosts} hosts each, between two rounds.

    C{browsers} is the number of browsers that show one page. The result is the longest reactor iteration of
    all requests, in seconds of processor time without garbage collections; times of others are in C{paths}.
    """
    with tempfile.TemporaryDirectory() as folder:
        return await _measured(reactor, orders, Path(folder))


async def _measured(reactor: Any, orders: Orders, folder: Path) -> Result:
    names = [f"f{number}" for number in range(orders["fabrics"])]
    sections = "".join(f'[fabrics.{name}]\nport = "sim:fattree:4"\n' for name in names)
    config = parseConfig(_CONFIG.format(folder=folder) + sections)
    _fill(folder, swept(orders["hosts"], orders["radix"]), reactor.seconds())
    simulated = [
        SimulatedFabric(reactor, fatTree(orders["hosts"], orders["radix"]), latencySeconds=0.0001)
        for _ in names
    ]
    for one in simulated:
        one.traffic(1e8, 1e5)
    before = memoryBytes()[0]
    reopen = {name: one.attach for name, one in zip(names, simulated, strict=True)}
    service = FabricsService(reactor, config, reopen=reopen)
    begun = time.perf_counter()
    service.startService()
    pollers = [one.poller for one in service.monitors.values()]
    while not all(poller.statistics.sweeps for poller in pollers):
        await deferLater(reactor, 1.0)
    for turn in range(1, _ROUNDS + 1):
        for poller in pollers:
            poller.rounds.runNow()
            while poller.statistics.turns < turn:
                await deferLater(reactor, 0.1)
    ready = time.perf_counter() - begun
    switches = [node for node in simulated[0].nodes.values() if node.isSwitch]
    pollers[0].linear = {node.guid: bytes(simulated[0].linearOf(node)) for node in switches}
    pollers[0].surveyedAt = reactor.seconds()
    known = memoryBytes()[0]
    factory: Site = service.site.factory
    port = reactor.listenTCP(0, factory, interface="127.0.0.1", backlog=1000)
    ports = sum(len(poller.meters) for poller in pollers)
    paths = {}
    for name, path in _PATHS.items():
        leaf, upper = (guidText(node.guid) for node in (switches[0], switches[-1]))
        past = int(reactor.seconds() - _YEAR / 2)
        path = path.format(last=ports - 100, past=past, switch=leaf, upper=upper)
        paths[name] = await _asked(reactor, port.getHost().port, path, 1)
    scraped = memoryBytes()[0]
    browsers = await _asked(reactor, port.getHost().port, "/fabrics/f0/links?sort=load", orders["browsers"])
    after = memoryBytes()[0]
    await port.stopListening()
    await service.stopService()
    for one in simulated:
        one.close()
    return {
        "value": max(one["longest"] for one in paths.values()),
        "typical": median(one["longest"] for one in paths.values()),
        "ports": ports,
        "states": _STATES,
        "jobs": _JOBS,
        "ready": ready,
        "paths": paths,
        "browsers": browsers,
        "memory": {"simulation": before, "known": known, "scraped": scraped, "browsers": after},
    }
