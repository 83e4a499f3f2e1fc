"""
Run one of the two processes of a measurement of the byte transfer layer.

C{python -m benchmarks.btlends server|client ORDERS} starts one.

Each process has a software device at its own loopback address. Datagrams use shared memory; with the order
C{route=rocev2} they use UDP, and with C{loss} an end of a L{wire<benchmarks.wires>}. C{modules} is the number
of devices. Orders and results are JSON: C{count} and C{size} of messages or round trips, C{bytes} and
C{write}, or C{connections} whose memory is measured. With C{isCall} a round trip is a call and its answer;
with C{isBatch} messages are sent and received in batches. With C{senders} the client is that many processes
on one core, which send to one server for C{seconds}: see L{benchmarks.btlsenders}.
"""

from __future__ import annotations

import gc
import json
import sys
import time
import tracemalloc
from typing import Any

from benchmarks import btlsenders
from benchmarks.btlsenders import ASK
from benchmarks.orders import cpuSeconds, memoryBytes, Orders, ownAddress, pieces, prepare, sendMessage
from benchmarks.wires import HERE, THERE

BURST = 256
"""Messages that are sent in one iteration of the reactor."""

BURSTS = 8
"""Maximum number of unacknowledged bursts."""

MOST_BYTES = 8 << 20
"""Maximum number of unacknowledged bytes of long messages; two messages are always allowed."""

WARMING = 200

ANSWER = 2
"""Tag of the server's messages."""


def idlePeer(count: int) -> float:
    """Return the bytes of one of this many idle peers of a module, without its connection and protocol."""
    from txrdma.btl.core.module import Module

    module = Module(4096, (256, 1024))
    tracemalloc.start()
    for name in range(count):
        module.addPeer(name, name, ((1, name), (2, name)), 1, 1, None, 0.0)
    taken, _most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return taken / count


def main(role: str, orders: Orders) -> None:
    if role == "client" and orders["scenario"] == "senders":
        btlsenders.main(orders)
        return
    prepare(orders)
    from zope.interface import implementer

    from twisted.internet.defer import Deferred, gatherResults
    from twisted.internet.stdio import StandardIO
    from twisted.internet.task import deferLater, react

    from benchmarks.connecting import held
    from benchmarks.scenarios import Waiting
    from txrdma import btl
    from txrdma.btl.status import report
    from txrdma.messages.interfaces import IMessageProtocolFactory
    from txrdma.messages.protocol import MessageFactory, MessageProtocol

    count = orders["count"] if "count" in orders else orders.get("bytes", 0) // orders.get("write", 1)
    here, there = (HERE, THERE) if orders.get("loss") else (ownAddress(1), ownAddress(0))

    route = orders.get("route", "auto")

    def devices(first: str, number: int) -> list[str]:
        """Return the devices of one end: one at the first address, and one at each further address."""
        more = [ownAddress(number + 2 * each) for each in range(orders.get("modules", 1) - 1)]
        return [f"soft:{address}:route={route}" for address in (first, *more)]

    @implementer(IMessageProtocolFactory)
    class Answering(MessageProtocol):
        """Answers each message, or only the last one."""

        def buildProtocol(self, peer: object) -> MessageProtocol:
            return self

        def connectionMade(self) -> None:
            self.left = count
            self.transport.answer(ASK, lambda data: data)
            if orders.get("isBatch"):
                Deferred.fromCoroutine(self.receiveBatches()).addErrback(lambda failure: None)  # at the end
                return
            isEcho = orders["scenario"] == "roundTrip"
            self.transport.setHandler(ASK, self.echo if isEcho else self.counted)
            self.cpu = cpuSeconds()

        async def receiveBatches(self) -> None:
            self.cpu = cpuSeconds()
            while self.left:
                self.left -= len(await self.transport.receiveMany(ASK))
            self.transport.post(ANSWER, b"!")

        def echo(self, data: memoryview) -> None:
            self.transport.post(ANSWER, data)

        def counted(self, data: memoryview) -> None:
            self.left -= 1
            if not self.left:
                self.transport.post(ANSWER, b"!")

    @implementer(IMessageProtocolFactory)
    class Counting(MessageProtocol):
        """Receives messages from many senders."""

        cpu = 0.0

        def buildProtocol(self, peer: object) -> MessageProtocol:
            return Counting()

        def connectionMade(self) -> None:
            self.transport.setHandler(ASK, lambda data: None)

    @implementer(IMessageProtocolFactory)
    class Asking(MessageProtocol):
        """Sends messages and waits for the answers."""

        def buildProtocol(self, peer: object) -> MessageProtocol:
            return self

        def connectionMade(self) -> None:
            self.done: Deferred[None] = Deferred()

        def flood(self, source: list[bytes], burst: int, bursts: int) -> None:
            """Send all messages; send the next burst when one has arrived."""
            self.transport.setHandler(ANSWER, lambda data: self.done.callback(None))
            self.source, self.burst, self.left = source, burst, count
            for _ in range(bursts):
                self.send(None)

        def send(self, error: Exception | None) -> None:
            post, source = self.transport.post, self.source
            length = min(self.burst, self.left)
            begin = self.left
            self.left -= length
            if length and orders.get("isBatch"):
                batch = [source[number % len(source)] for number in range(begin, self.left, -1)]
                self.transport.sendMany(ASK, batch).addCallback(self.send)
                return
            for number in range(begin, begin - length, -1):
                post(ASK, source[number % len(source)], self.send if number == begin - length + 1 else None)

        async def call(self) -> None:
            """Call the server's function, one call after the other."""
            call, message = self.transport.call, b"p" * orders["size"]
            for left in range(count + WARMING, 0, -1):
                if left == count:
                    self.begun = time.perf_counter()
                await call(ASK, message)
            self.done.callback(None)

        def ping(self) -> None:
            """Send the next message when the answer to the last one has arrived."""
            self.message = b"p" * orders["size"]
            self.left = count + WARMING
            self.transport.setHandler(ANSWER, self.pong)
            self.transport.post(ASK, self.message)

        def pong(self, data: memoryview) -> None:
            self.left -= 1
            if self.left == count:
                self.begun = time.perf_counter()
            if self.left:
                self.transport.post(ASK, self.message)
            else:
                self.done.callback(None)

    async def server(reactor: Any) -> None:
        opened = orders.get("connections")
        counting = Counting() if orders["scenario"] == "senders" else Answering()
        protocol = counting if opened is None else MessageFactory(MessageProtocol)
        interface = THERE if orders.get("loss") else "127.0.0.1"
        port: Any = await btl.listen(reactor, 0, protocol, interface, devices(there, 2))
        notified: Deferred[None] = Deferred()
        StandardIO(Waiting(notified))
        gc.collect()
        before = memoryBytes()
        sendMessage({"port": port.getHost().port})
        await notified
        if opened is not None:
            sendMessage({"cpu": cpuSeconds(), "memory": held(before, opened)})
            return
        sendMessage({"cpu": (cpuSeconds() - counting.cpu) / max(1, count)})

    async def open(reactor: Any, host: str) -> None:
        """Open idle connections, and measure their memory until this process is killed."""
        factory = MessageFactory(MessageProtocol)
        await btl.connect(reactor, host, orders["port"], factory, devices(here, 3))
        gc.collect()
        before = memoryBytes()
        for _ in range(orders["connections"] // 20):
            await gatherResults(
                [btl.connect(reactor, host, orders["port"], factory, devices(here, 3)) for _ in range(20)]
            )
        await deferLater(reactor, 0.5)
        mode = "btl UDP" if route == "rocev2" else "btl shared memory"
        memory = held(before, orders["connections"])
        sendMessage({"memory": memory, "peer": idlePeer(orders["connections"]), "mode": mode})
        await Deferred()

    async def client(reactor: Any) -> None:
        protocol = Asking()
        host = THERE if orders.get("loss") else "127.0.0.1"
        if "connections" in orders:
            await open(reactor, host)
        await btl.connect(reactor, host, orders["port"], protocol, devices(here, 3))
        scenario = orders["scenario"]
        source = [] if scenario == "roundTrip" else pieces(orders["write"])
        cpu, begun = cpuSeconds(), time.perf_counter()
        if scenario == "messages":
            protocol.flood(source, BURST, BURSTS)
        elif scenario == "throughput":
            protocol.flood(source, 1, max(2, MOST_BYTES // orders["write"]))
        elif orders.get("isCall"):
            await protocol.call()
        else:
            protocol.ping()
        await protocol.done
        seconds = time.perf_counter() - (protocol.begun if scenario == "roundTrip" else begun)
        values = {"messages": count / seconds, "roundTrip": seconds / count}
        value = values.get(scenario) or orders["bytes"] / seconds
        sendMessage(
            {
                "value": value,
                "cpu": (cpuSeconds() - cpu) / count,
                "resent": report()["counters"]["num_resends"],
                "mode": "btl UDP" if route == "rocev2" or orders.get("loss") else "btl shared memory",
            }
        )

    react(server if role == "server" else client)


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
