"""Scenarios of the two processes of a measurement."""

from __future__ import annotations

import gc
import sys
import time
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import Any, TypeVar

from zope.interface import implementer

from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.endpoints import connectProtocol
from twisted.internet.interfaces import IPushProducer, IReactorTime, IStreamClientEndpoint
from twisted.internet.protocol import connectionDone, Factory, Protocol
from twisted.internet.task import deferLater
from twisted.python.failure import Failure

from benchmarks.orders import cpuSeconds, memoryBytes, Orders, pieces
from txrdma.cm.connections.transport import RDMATransport
from txrdma.smc.common.names import diagnosisName
from txrdma.tap.proxy import IStreamTransport

Result = dict[str, Any]
"""A result for JSON."""


class Waiting(Protocol):
    """Fires when standard input ends."""

    def __init__(self, notified: Deferred[None]) -> None:
        self._notified = notified

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self._notified.callback(None)


class Speaking(Protocol):
    """A protocol on a stream of txrdma or of Twisted."""

    transport: IStreamTransport


P = TypeVar("P", bound=Protocol)


async def connect(endpoint: IStreamClientEndpoint, protocol: P) -> P:
    """Connect; return the protocol."""
    await connectProtocol(endpoint, protocol)
    return protocol


class Serving(Factory):
    """A server factory that measures resources since its first connection."""

    noisy = False

    def build(self) -> Protocol:
        """Build a protocol, and record resources at the first and second connection."""
        return Protocol()

    def __init__(self, orders: Orders) -> None:
        self.orders = orders
        self._cpu: float | None = None
        self._memory: tuple[int, int] = (0, 0)
        self.connections: list[Protocol] = []

    def buildProtocol(self, address: object) -> Protocol:
        if self._cpu is None:
            self._cpu = cpuSeconds()
        elif len(self.connections) == 1:
            gc.collect()
            self._memory = memoryBytes()  # the first connection includes one-time costs
        protocol = self.build()
        self.connections.append(protocol)
        return protocol

    def cpuSeconds(self) -> float:
        """Return the CPU time since the first connection."""
        return 0.0 if self._cpu is None else cpuSeconds() - self._cpu

    def memory(self) -> Result:
        """Return the growth of memory since the second connection."""
        return growth(self._memory, self.connections[1:])


def growth(before: tuple[int, int], connections: list[Protocol]) -> Result:
    """Return the growth of memory by connections, and the part of it in buffers."""
    gc.collect()
    own, shared = memoryBytes()
    return {
        "own": own - before[0],
        "shared": shared - before[1],
        "rings": sum(map(ringBytes, connections)),
        "connections": len(connections),
    }


def ringBytes(protocol: Protocol) -> int:
    """Return the size of a connection's two ring buffers: the local one, and the remote one."""
    status = getattr(protocol.transport, "smc", None)
    values = {} if status is None else status.toDict()
    return int(values.get("bufferSize", 0)) + int(values.get("peerBufferSize", 0))


def modeOf(protocol: Protocol) -> str:
    """Return the mode that carried the bytes."""
    connection = getattr(protocol.transport, "connection", None)
    if isinstance(connection, RDMATransport):
        return f"rsocket {connection.route}"
    status = getattr(protocol.transport, "smc", None)
    if status is None:
        return "TCP"
    reasons = [diagnosisName(each) for each in (status.fallbackReason, status.peerDiagnosis) if each]
    return f"{status.mode} {status.route}".strip() + (
        f" ({' and '.join(map(str, reasons))})" if reasons else ""
    )


class Sink(Speaking):
    """Counts bytes, and answers the last one."""

    def __init__(self, total: int) -> None:
        self.left = total

    def dataReceived(self, data: bytes) -> None:
        self.left -= len(data)
        if self.left <= 0:
            self.transport.write(b"!")


class Echo(Speaking):
    def dataReceived(self, data: bytes) -> None:
        self.transport.write(data)


REQUEST_BYTES = 64


class Answering(Speaking):
    """Answers each request of 64 bytes with a body from the source."""

    def __init__(self, source: Callable[[], bytes]) -> None:
        self._source = source
        self._held = 0

    def dataReceived(self, data: bytes) -> None:
        self._held += len(data)
        while self._held >= REQUEST_BYTES:
            self._held -= REQUEST_BYTES
            self.transport.write(self._source())


class AnsweringFactory(Serving):
    def __init__(self, orders: Orders) -> None:
        super().__init__(orders)
        self._pieces = pieces(orders["answer"])
        self._next = 0

    def source(self) -> bytes:
        """Return the next piece."""
        self._next = (self._next + 1) % len(self._pieces)
        return self._pieces[self._next]

    def build(self) -> Protocol:
        return Answering(self.source)


class SinkFactory(Serving):
    def build(self) -> Protocol:
        return Sink(self.orders["bytes"])


class EchoFactory(Serving):
    def build(self) -> Protocol:
        return Echo()


@implementer(IPushProducer)
class Source(Speaking):
    """Writes a number of bytes as fast as the transport takes them, and waits for the answer."""

    def __init__(self, total: int, size: int) -> None:
        self._pieces = pieces(size)
        self._left = total // size
        self._next = 0
        self._running = True
        self.done: Deferred[None] = Deferred()

    def connectionMade(self) -> None:
        self.begun = time.perf_counter()
        self.transport.registerProducer(self, True)
        self.resumeProducing()

    def resumeProducing(self) -> None:
        self._running = True
        write, source, count = self.transport.write, self._pieces, len(self._pieces)
        while self._running and self._left:
            write(source[self._left % count])
            self._left -= 1
        if not self._left:
            self._running = False
            self.transport.unregisterProducer()

    def pauseProducing(self) -> None:
        self._running = False

    def stopProducing(self) -> None:
        self._running = False

    def dataReceived(self, data: bytes) -> None:
        self.seconds = time.perf_counter() - self.begun
        self.done.callback(None)


async def throughput(reactor: IReactorTime, endpoint: IStreamClientEndpoint, orders: Orders) -> Result:
    """Bytes per second, from the first write until the peer acknowledges the last byte."""
    source = await connect(endpoint, Source(orders["bytes"], orders["write"]))
    await source.done
    return {"value": orders["bytes"] / source.seconds, "mode": modeOf(source)}


class Ping(Speaking):
    """Sends the next message when the last one has returned."""

    WARMING = 200

    def __init__(self, size: int, count: int) -> None:
        self._message = b"p" * size
        self._count = count
        self._left = count + self.WARMING
        self._held = 0
        self.done: Deferred[None] = Deferred()

    def connectionMade(self) -> None:
        self.transport.setTcpNoDelay(True)
        self.transport.write(self._message)

    def warm(self) -> None:
        """Begin the measurement."""

    def dataReceived(self, data: bytes) -> None:
        self._held += len(data)
        if self._held < len(self._message):
            return
        self._held = 0
        self._left -= 1
        if self._left == self._count:
            self.warm()
            self.begun = time.perf_counter()
        if self._left:
            self.transport.write(self._message)
        else:
            self.seconds = (time.perf_counter() - self.begun) / self._count
            self.done.callback(None)


async def roundTrip(reactor: IReactorTime, endpoint: IStreamClientEndpoint, orders: Orders) -> Result:
    """Seconds of a round trip."""
    ping = await connect(endpoint, Ping(orders["size"], orders["count"]))
    await ping.done
    return {"value": ping.seconds, "mode": modeOf(ping)}


class CountedPing(Ping):
    """
    Counts after the first round trips.

    @ivar iterations: iterations of the reactor.
    @ivar functions: number of calls of each function; C{bytecodes}: of the bytecodes executed in it.
    """

    def __init__(self, orders: Orders, reactor: Any) -> None:
        super().__init__(orders["size"], orders["count"])
        self.iterations = 0
        self.functions: Counter[str] = Counter()
        self.bytecodes: Counter[str] = Counter()
        self._isTraced = orders["isTraced"]
        self._reactor = reactor

    def warm(self) -> None:
        iterate = self._reactor.doIteration

        def counted(timeout: float | None) -> None:
            self.iterations += 1
            iterate(timeout)

        self._reactor.doIteration = counted
        if self._isTraced:
            self.done.addCallback(lambda result: sys.settrace(None))
            sys.settrace(self._called)

    def _called(self, frame: FrameType, event: str, argument: object) -> Any:
        name = f"{frame.f_globals.get('__name__')}.{frame.f_code.co_name}"
        self.functions[name] += 1
        frame.f_trace_opcodes, frame.f_trace_lines = True, False

        def executed(frame: FrameType, event: str, argument: object) -> Any:
            if event == "opcode":
                self.bytecodes[name] += 1
            return executed

        return executed


async def countedRoundTrips(reactor: Any, endpoint: IStreamClientEndpoint, orders: Orders) -> Result:
    """Iterations, and if traced functions and bytecodes, for each round trip."""
    ping = await connect(endpoint, CountedPing(orders, reactor))
    await ping.done
    count = orders["count"]
    return {
        "iterations": ping.iterations / count,
        "functions": ping.functions.total() / count,
        "bytecodes": {name: number / count for name, number in ping.bytecodes.most_common()},
    }


class Asking(Speaking):
    """Sends the next request when the last answer is complete."""

    def __init__(self, count: int, answer: int) -> None:
        self._left = count
        self._answer = self._missing = answer
        self.done: Deferred[None] = Deferred()

    def ask(self) -> None:
        """Send the next request."""
        self.transport.write(b"?" * REQUEST_BYTES)

    def dataReceived(self, data: bytes) -> None:
        self._missing -= len(data)
        if self._missing:
            return
        self._missing = self._answer
        self._left -= 1
        if self._left:
            self.ask()
        else:
            self.done.callback(None)


async def requests(reactor: IReactorTime, endpoint: IStreamClientEndpoint, orders: Orders) -> Result:
    """CPU time of this end while many connections exchange requests and answers."""
    count = orders["bytes"] // orders["answer"] // orders["parallel"]
    asking = [await connect(endpoint, Asking(count, orders["answer"])) for _ in range(orders["parallel"])]
    cpu, begun = cpuSeconds(), time.perf_counter()
    for protocol in asking:
        protocol.ask()
    await gatherResults([protocol.done for protocol in asking])
    return {
        "cpu": cpuSeconds() - cpu,
        "seconds": time.perf_counter() - begun,
        "bytes": count * orders["answer"] * orders["parallel"],
        "mode": modeOf(asking[0]),
    }


async def idle(reactor: IReactorTime, endpoint: IStreamClientEndpoint, orders: Orders) -> Result:
    """Memory of many idle connections."""
    await connect(endpoint, Protocol())  # one-time costs do not count
    await deferLater(reactor, 0.2)
    gc.collect()
    before = memoryBytes()
    opened = [await connect(endpoint, Protocol()) for _ in range(orders["connections"])]
    await deferLater(reactor, 0.5)
    return {"memory": growth(before, opened), "mode": modeOf(opened[0])}


servers = {
    "throughput": SinkFactory,
    "roundTrip": EchoFactory,
    "countedRoundTrips": EchoFactory,
    "requests": AnsweringFactory,
    "idle": Serving,
}
clients = {
    "throughput": throughput,
    "roundTrip": roundTrip,
    "countedRoundTrips": countedRoundTrips,
    "requests": requests,
    "idle": idle,
}
