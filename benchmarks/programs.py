"""
Programs that use a stream: round trips with work at each end, AMP, HTTP.

A busy-polling transport looks better when it is measured alone, so both ends compute between messages.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import quantiles
from typing import Any

from zope.interface import implementer

from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.interfaces import IProtocol, IReactorTime, IStreamClientEndpoint
from twisted.internet.protocol import Protocol
from twisted.protocols.amp import AMP, Command, Integer
from twisted.web.client import Agent, HTTPConnectionPool, readBody
from twisted.web.iweb import IAgentEndpointFactory
from twisted.web.server import Site
from twisted.web.static import File

from benchmarks.orders import Orders
from benchmarks.scenarios import connect, modeOf, Ping, Result, Serving, Speaking

WARMING = 200
"""Repetitions before the measurement."""

FILES = 64
FILE_BYTES = 2_000


def work(seconds: float) -> None:
    """Use the processor for some time."""
    if seconds:
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            pass


def bothCPU(orders: Orders) -> float:
    """CPU time of this process and the server so far, in seconds."""
    spent = 0
    for process in ("self", str(orders["server"])):
        for path in Path("/proc", process, "task").glob("*/schedstat"):
            spent += int(path.read_text().split()[0])
    return spent * 1e-9


def latencies(found: list[float]) -> Result:
    """Return the median and the 99th percentile, in seconds."""
    cuts = quantiles(found, n=100, method="inclusive")
    return {"p50": cuts[49], "p99": cuts[98]}


class WorkingEcho(Speaking):
    """Echoes after some work."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def dataReceived(self, data: bytes) -> None:
        work(self._seconds)
        self.transport.write(data)


class WorkingPing(Ping):
    """Works before it sends the next message."""

    def __init__(self, orders: Orders) -> None:
        super().__init__(orders["size"], orders["count"])
        self._seconds = orders["work"] * 1e-6
        self._orders = orders

    def warm(self) -> None:
        self._cpu = bothCPU(self._orders)

    def cpuSeconds(self) -> float:
        """Return the CPU time of both processes since the measurement began."""
        return bothCPU(self._orders) - self._cpu

    def dataReceived(self, data: bytes) -> None:
        work(self._seconds)
        super().dataReceived(data)


class WorkingFactory(Serving):
    def build(self) -> Protocol:
        return WorkingEcho(self.orders["work"] * 1e-6)


async def working(reactor: IReactorTime, endpoint: IStreamClientEndpoint, orders: Orders) -> Result:
    """Seconds and CPU time of a round trip with work at each end."""
    ping = await connect(endpoint, WorkingPing(orders))
    await ping.done
    return {
        "value": ping.seconds,
        "cpu": ping.cpuSeconds() / orders["count"],
        "mode": modeOf(ping),
    }


class TimedPing(WorkingPing):
    """Records the time of each round trip, for some seconds."""

    def __init__(self, orders: Orders) -> None:
        super().__init__({**orders, "count": 1 << 62})
        self.found: list[float] = []
        self._until = 0.0
        self._sent = 0.0

    def connectionMade(self) -> None:
        self._until = time.perf_counter() + self._orders["seconds"]
        self._sent = time.perf_counter()
        super().connectionMade()

    def dataReceived(self, data: bytes) -> None:
        now = time.perf_counter()
        self.found.append(now - self._sent)
        if now < self._until:
            work(self._seconds)
            self._sent = time.perf_counter()
            self.transport.write(data)
        elif not self.done.called:
            self.done.callback(None)


async def timed(reactor: IReactorTime, endpoint: IStreamClientEndpoint, orders: Orders) -> Result:
    """Round trips a second with work at each end, and their latency."""
    ping = await connect(endpoint, TimedPing(orders))
    await ping.done
    return {"rate": len(ping.found) / orders["seconds"], **latencies(ping.found), "mode": modeOf(ping)}


class Add(Command):
    """Adds two numbers."""

    arguments = [(b"a", Integer()), (b"b", Integer())]
    response = [(b"total", Integer())]


class Adding(AMP):
    """Answers L{Add}."""

    @Add.responder
    def add(self, a: int, b: int) -> dict[str, int]:
        return {"total": a + b}


class AddingFactory(Serving):
    def build(self) -> Protocol:
        protocol: Protocol = Adding()  # type: ignore[no-untyped-call]  # Twisted's
        return protocol


async def calls(reactor: IReactorTime, endpoint: IStreamClientEndpoint, orders: Orders) -> Result:
    """AMP calls, one after the other."""
    caller: Any = await connect(endpoint, AMP())
    for turn in range(-WARMING, orders["count"]):
        if not turn:
            cpu, begun = bothCPU(orders), time.perf_counter()
        answer = await caller.callRemote(Add, a=turn, b=1)
        assert answer["total"] == turn + 1
    seconds = time.perf_counter() - begun
    cpu = (bothCPU(orders) - cpu) / orders["count"]
    return {"rate": orders["count"] / seconds, "cpu": cpu, "mode": modeOf(caller)}


class WebFactory(Serving):
    """A web server with a folder of small files."""

    def __init__(self, orders: Orders) -> None:
        super().__init__(orders)
        self._folder = tempfile.TemporaryDirectory(prefix="txrdma-bench-")
        for number in range(FILES):
            (Path(self._folder.name) / str(number)).write_bytes(bytes([number]) * FILE_BYTES)
        self._site = Site(File(self._folder.name))
        self._site.noisy = False

    def startFactory(self) -> None:
        self._site.doStart()

    def stopFactory(self) -> None:
        self._site.doStop()
        self._folder.cleanup()

    def memory(self) -> Result:
        """Return no result: the memory of a web server is not measured."""
        return {}

    def build(self) -> Protocol:
        protocol: Protocol = self._site.buildProtocol(None)
        return protocol


@implementer(IAgentEndpointFactory)
class OneEndpoint:
    """Returns the same endpoint for every address, and records its connections."""

    def __init__(self, endpoint: IStreamClientEndpoint) -> None:
        self._endpoint = endpoint
        self.connections: list[IProtocol] = []

    def endpointForURI(self, uri: object) -> IStreamClientEndpoint:
        return self  # type: ignore[return-value]  # what it connects goes by the other endpoint

    def connect(self, factory: Any) -> Deferred[IProtocol]:
        """Connect, and record the connection."""

        def remember(protocol: IProtocol) -> IProtocol:
            self.connections.append(protocol)
            return protocol

        return self._endpoint.connect(factory).addCallback(remember)


async def _gets(get: Callable[[int], Any], count: int, found: list[float]) -> None:
    for turn in range(count):
        begun = time.perf_counter()
        response = await get(turn)
        body = await readBody(response)
        assert len(body) == FILE_BYTES
        found.append(time.perf_counter() - begun)


async def web(reactor: IReactorTime, endpoint: IStreamClientEndpoint, orders: Orders) -> Result:
    """HTTP requests per second over persistent connections, that many at a time."""
    parallel = orders["parallel"]
    pool = HTTPConnectionPool(reactor, persistent=True)
    pool.maxPersistentPerHost = parallel
    endpoints = OneEndpoint(endpoint)
    agent: Any = Agent.usingEndpointFactory(reactor, endpoints, pool)

    def get(turn: int) -> Any:
        return agent.request(b"GET", b"http://localhost/%d" % (turn % FILES))

    async def round_(count: int) -> list[float]:
        found: list[float] = []
        each = max(1, count // parallel)
        await gatherResults([Deferred.fromCoroutine(_gets(get, each, found)) for _ in range(parallel)])
        return found

    await round_(max(WARMING, 4 * parallel))
    cpu, begun = bothCPU(orders), time.perf_counter()
    found = await round_(orders["count"])
    seconds = time.perf_counter() - begun
    cpu = (bothCPU(orders) - cpu) / len(found)
    mode = modeOf(endpoints.connections[0])  # type: ignore[arg-type]  # of HTTP
    await pool.closeCachedConnections()
    return {"rate": len(found) / seconds, **latencies(found), "cpu": cpu, "mode": mode}


servers = {"working": WorkingFactory, "timed": WorkingFactory, "calls": AddingFactory, "web": WebFactory}
clients = {"working": working, "timed": timed, "calls": calls, "web": web}
