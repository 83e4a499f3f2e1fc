"""Scenarios of many connections: how fast they open and close, and their memory while idle."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time
from collections import Counter
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from typing import Any

from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.endpoints import connectProtocol, wrapClientTLS
from twisted.internet.interfaces import IStreamClientEndpoint
from twisted.internet.protocol import connectionDone, Protocol
from twisted.internet.task import deferLater
from twisted.python.failure import Failure

from benchmarks.orders import memoryBytes, Orders
from benchmarks.scenarios import Echo, modeOf, REQUEST_BYTES, Result, Serving, Speaking
from txrdma.cm.connections.transport import RDMATransport

ANSWER_BYTES = 256 << 10
"""
Bytes that a TLS connection carries in each direction before its memory is measured, so that its rings are
used.
"""


class Visiting(Speaking):
    """Connects, sends a request if the orders require it, and closes."""

    def __init__(self, asks: bool) -> None:
        self._asks = asks
        self.mode = ""
        self.over: Deferred[None] = Deferred()

    def connectionMade(self) -> None:
        self.mode = modeOf(self)
        if self._asks:
            self.transport.write(b"?" * REQUEST_BYTES)
        else:
            self.transport.loseConnection()

    def dataReceived(self, data: bytes) -> None:
        self.transport.loseConnection()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self.over.callback(None)


async def visit(endpoint: IStreamClientEndpoint, asks: bool) -> str:
    """Open and close one connection; return the transport that carried it."""
    visiting = Visiting(asks)
    await connectProtocol(endpoint, visiting)
    await visiting.over
    return visiting.mode


def modes(found: Counter[str]) -> str:
    """Return the mode if all connections have the same, or the number of each."""
    return next(iter(found)) if len(found) == 1 else f"mixed: {dict(found)}"


async def connects(reactor: Any, endpoint: IStreamClientEndpoint, orders: Orders) -> Result:
    """Connections per second, each closed when it is established or has its answer."""
    await visit(endpoint, True)
    found: Counter[str] = Counter()
    left = orders["count"]

    async def one() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            found[await visit(endpoint, orders["asks"])] += 1

    begun = time.perf_counter()
    await gatherResults([Deferred.fromCoroutine(one()) for _ in range(orders["parallel"])])
    return {"value": orders["count"] / (time.perf_counter() - begun), "mode": modes(found)}


async def burst(reactor: Any, endpoint: IStreamClientEndpoint, orders: Orders) -> Result:
    """
    Connections per second of a burst that begins in one iteration of the reactor, until the last is
    established.
    """
    await visit(endpoint, True)
    begun = time.perf_counter()
    opened = await gatherResults([connectProtocol(endpoint, Speaking()) for _ in range(orders["count"])])
    taken = time.perf_counter() - begun
    return {"value": orders["count"] / taken, "mode": modes(Counter(map(modeOf, opened)))}


async def first(reactor: Any, endpoint: IStreamClientEndpoint, orders: Orders) -> Result:
    """Seconds until the first connection of a process is established, without imports."""
    await deferLater(reactor, 0.3)
    begun = time.perf_counter()
    one = await connectProtocol(endpoint, Speaking())
    return {"value": time.perf_counter() - begun, "mode": modeOf(one)}


IMPORTS = """
import time
{before}
begun = time.perf_counter()
{measured}
print(time.perf_counter() - begun)
"""


async def imports(reactor: Any, endpoint: IStreamClientEndpoint, orders: Orders) -> Result:
    """
    Seconds to import what the endpoints need beyond Twisted's TCP, in a new process.

    For TCP: seconds to import Twisted's endpoints, as a measure of the machine.
    """
    words = {"before": "", "measured": "from twisted.internet import endpoints"}
    if not orders["connect"].startswith("tcp"):
        words = {
            "before": "from twisted.internet import reactor, endpoints, tcp",
            "measured": "import txrdma.smc.endpoints",
        }
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    with TemporaryDirectory() as cache:  # compile the bytecode first, as an installation does
        environment["PYTHONPYCACHEPREFIX"] = cache
        command = [sys.executable, "-c", IMPORTS.format(**words)]
        printed = [
            subprocess.run(command, capture_output=True, text=True, env=environment).stdout for _ in range(6)
        ]
    return {"value": min(map(float, printed[1:])), "mode": "SMC-R"}


# memory of connections


class RequestOnce(Speaking):
    """Requests L{ANSWER_BYTES}, and remains connected when it has them."""

    def __init__(self) -> None:
        self._left = ANSWER_BYTES
        self.done: Deferred[None] = Deferred()

    def connectionMade(self) -> None:
        self.transport.write(bytes(ANSWER_BYTES))

    def dataReceived(self, data: bytes) -> None:
        self._left -= len(data)
        if not self._left:
            self.done.callback(None)


def held(before: tuple[int, int], count: int) -> Result:
    """Memory beyond the given amount, with rings: private, and the proportional share of shared memory."""
    gc.collect()
    own, shared = memoryBytes()
    return {"own": own - before[0], "shared": shared - before[1], "connections": count}


class Holding(Serving):
    """A server that measures the memory of all its connections together."""

    def build(self) -> Protocol:
        return Echo()

    def memory(self) -> Result:
        return held(self._memory, max(len(self.connections) - 1, 1))


def tlsHolding(orders: Orders) -> Any:
    """A L{Holding} server behind TLS."""
    from twisted.internet import ssl
    from twisted.protocols.tls import TLSMemoryBIOFactory

    from txrdma.testing.streams.certificate import makeCertificate

    holding = Holding(orders)
    context = ssl.PrivateCertificate.loadPEM(makeCertificate()).options()
    factory = TLSMemoryBIOFactory(context, False, holding)
    factory.noisy = False
    made: Any = factory
    made.memory, made.cpuSeconds = holding.memory, holding.cpuSeconds
    return made


async def many(reactor: Any, endpoint: IStreamClientEndpoint, orders: Orders) -> Result:
    """Memory of many idle connections that have carried data."""
    if orders.get("tls"):
        from twisted.internet import ssl

        endpoint = wrapClientTLS(ssl.CertificateOptions(), endpoint)
    await connectProtocol(endpoint, Speaking())
    await deferLater(reactor, 0.2)
    gc.collect()
    before = memoryBytes()
    opened: list[Protocol] = []
    while len(opened) < orders["connections"]:
        some = [RequestOnce() if orders.get("tls") else Speaking() for _ in range(50)]
        await gatherResults([connectProtocol(endpoint, each) for each in some])
        await gatherResults([each.done for each in some if isinstance(each, RequestOnce)])
        opened += some
    await deferLater(reactor, 0.5)
    return {"memory": held(before, len(opened)), "mode": modes(Counter(map(carrier, opened)))}


def carrier(protocol: Protocol) -> str:
    """Return the transport that carries a connection, with or without TLS."""
    transport: Any = protocol.transport
    below = getattr(transport, "transport", transport)
    connection = getattr(below, "connection", None)
    if isinstance(connection, RDMATransport):
        return f"rsocket {connection.route}"
    status = getattr(below, "smc", None)
    return "TCP" if status is None else f"{status.mode} {status.route}".strip()


# a stream beside connections that open and close


class Steady(Speaking):
    """Sends the next message when the answer to the last one arrives, and records the durations."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.isOver = False
        self._sent = 0.0

    def ask(self) -> None:
        """Send the next message."""
        self._sent = time.perf_counter()
        self.transport.write(b"p" * REQUEST_BYTES)

    def dataReceived(self, data: bytes) -> None:
        self.seconds.append(time.perf_counter() - self._sent)
        if not self.isOver:
            self.ask()


async def beside(reactor: Any, endpoint: IStreamClientEndpoint, orders: Orders) -> Result:
    """The duration that 99 % of round trips of a stream do not exceed while others connect and close."""
    await visit(endpoint, True)
    steady = Steady()
    await connectProtocol(endpoint, steady)
    steady.ask()
    found: Counter[str] = Counter()
    visits = []

    async def one() -> None:
        found[await visit(endpoint, True)] += 1

    begun = reactor.seconds()
    for number in range(int(orders["rate"] * orders["seconds"])):
        wait = begun + number / orders["rate"] - reactor.seconds()
        if wait > 0:
            await deferLater(reactor, wait)
        visits.append(Deferred.fromCoroutine(one()))
    await gatherResults(visits)
    steady.isOver = True
    found[modeOf(steady)] += 1
    return {"value": quantiles(steady.seconds, n=100)[-1], "mode": modes(found)}


# page faults of the first bytes, and messages over many connections


def pageFaults(orders: Orders) -> int:
    """Return the page faults of this process and the server so far, without those that needed a disk."""
    found = 0
    for process in ("self", str(orders["server"])):
        with open(f"/proc/{process}/stat") as file:
            found += int(file.read().rpartition(")")[2].split()[7])
    return found


async def firstBytes(reactor: Any, endpoint: IStreamClientEndpoint, orders: Orders) -> Result:
    """Page faults of both processes by the first round trip of each of C{count} new connections."""
    await visit(endpoint, True)
    faults, opened = [], []
    for _ in range(orders["count"]):
        steady = Steady()
        opened.append(await connectProtocol(endpoint, steady))
        await deferLater(reactor, 0.05)  # page faults of the connect itself have happened
        steady.isOver = True
        before = pageFaults(orders)
        steady.ask()
        while not steady.seconds:
            await deferLater(reactor, 0.001)
        faults.append(pageFaults(orders) - before)
    found = Counter(map(modeOf, opened))
    return {"value": float(median(faults)), "most": float(max(faults)), "mode": modes(found)}


async def crowd(reactor: Any, endpoint: IStreamClientEndpoint, orders: Orders) -> Result:
    """Round trips per second over many connections, one message of each at a time."""
    steady = [Steady() for _ in range(orders["connections"])]
    for begin in range(0, len(steady), 50):
        await gatherResults([connectProtocol(endpoint, each) for each in steady[begin : begin + 50]])
    for each in steady:
        each.ask()
    await deferLater(reactor, 0.5)
    before, begun = sum(len(each.seconds) for each in steady), time.perf_counter()
    await deferLater(reactor, orders["seconds"])
    count, taken = sum(len(each.seconds) for each in steady) - before, time.perf_counter() - begun
    return {"value": count / taken, "mode": modes(Counter(map(modeOf, steady)))}


class EchoServing(Serving):
    """Echoes, without a record of its connections."""

    def buildProtocol(self, address: object) -> Protocol:
        return Echo()

    def memory(self) -> Result:
        return {}


servers = {
    "connects": EchoServing,
    "burst": EchoServing,
    "first": EchoServing,
    "imports": EchoServing,
    "beside": EchoServing,
    "firstBytes": EchoServing,
    "crowd": EchoServing,
    "many": Holding,
    "manyTLS": tlsHolding,
}
clients = {
    "connects": connects,
    "burst": burst,
    "first": first,
    "imports": imports,
    "beside": beside,
    "firstBytes": firstBytes,
    "crowd": crowd,
    "many": many,
    "manyTLS": many,
}
