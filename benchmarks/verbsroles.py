"""
Scenarios of the client of a measurement on verbs.

A series is that of C{txrdma pingpong}. Bulk resembles a stream of L{benchmarks.scenarios}: it sends from 64
MiB that no cache holds, while pingpong sends the same bytes repeatedly.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IStreamClientEndpoint
from twisted.internet.protocol import Factory

from benchmarks.orders import cpuSeconds, Orders, SOURCE_BYTES
from txrdma.iba.verbs import Completion, Operation, SendRequest
from txrdma.pingpong.bootstrap import BootstrapHello, Connect, Connected, Open, Opened
from txrdma.pingpong.conversation import Conversation
from txrdma.pingpong.link import LinkUser, MeasuredLink, TestSide
from txrdma.pingpong.measurement import Measurement
from txrdma.pingpong.plan import LinkSettings, Measure, Transfer
from txrdma.pingpong.report import asDict
from txrdma.pingpong.run import Running, Series
from txrdma.pingpong.session import connect

Result = dict[str, Any]
"""A result for JSON."""


async def series(endpoint: IStreamClientEndpoint, side: TestSide, orders: Orders) -> Result:
    """
    Tests of C{transfers}, C{measures} and C{sizes}, of C{seconds} or C{iterations} each, C{depth} at a time.

    C{cpu} of each is the CPU time of the client's process, including preparation.
    """
    tested = await connect(endpoint, side)
    found: list[Result] = []
    before = cpuSeconds()

    def took(measurement: Measurement) -> None:
        nonlocal before
        now = cpuSeconds()
        values = asDict(measurement)
        values.pop("histogram", None)
        found.append({**values, "cpu": now - before})
        before = now

    what = Series(
        transfers=[Transfer(name) for name in orders["transfers"]],
        measures=[Measure(name) for name in orders["measures"]],
        sizes=orders["sizes"],
        iterations=orders.get("iterations", 0),
        seconds=orders["seconds"],
        warmup=orders.get("warmup", 10),
        depth=orders.get("depth", 64),
        inline=orders.get("inline", 0),
    )
    try:
        await Running(tested, what, took).run()
    finally:
        tested.close()
    return {"results": found, "value": found[0]["messageRate"], "mode": found[0]["route"]}


class Bulk(LinkUser):
    """Sends or writes a number of bytes, message by message, as fast as the link takes them."""

    def __init__(self, link: MeasuredLink, orders: Orders) -> None:
        self._link = link
        self._size = size = orders["write"]
        self._left = self._outstanding = orders["bytes"] // size
        self._depth = orders["depth"]
        operation = Operation[orders["operation"]]
        peer = link.peer
        assert peer is not None  # a connected end has a link
        there = peer.address + link.layout.arriving
        self._requests = [
            SendRequest(
                index,
                operation,
                [link.segment(index * size, size)],
                remoteAddress=there + index * size,
                rkey=peer.rkey,
            )
            for index in range(SOURCE_BYTES // size)
        ]
        self._next = 0
        self.done: Deferred[None] = Deferred()

    def start(self) -> None:
        self._post(self._depth)

    def arrived(self, batch: Sequence[Completion]) -> None:
        """Ignore arrivals: only the peer receives."""

    def sendsCompleted(self, batch: Sequence[Completion]) -> None:
        """Count sent messages, and send further ones."""
        self._outstanding -= len(batch)
        self._post(len(batch))
        if not self._outstanding:
            self.done.callback(None)

    def failed(self, error: Exception) -> None:
        self.done.errback(error)

    def _post(self, count: int) -> None:
        count = min(count, self._left)
        self._left -= count
        requests, first = self._requests, self._next
        end = first + count
        self._next = end % len(requests)
        batch = requests[first:end]
        if end > len(requests):
            batch += requests[: self._next]
        if batch:
            self._link.queuePair.postSend(batch)


async def bulk(endpoint: IStreamClientEndpoint, side: TestSide, orders: Orders) -> Result:
    """Bytes per second, of C{bytes} in messages of C{write} bytes, C{depth} at a time."""
    conversation = await endpoint.connect(Factory.forProtocol(lambda: Conversation(side.reactor)))
    assert isinstance(conversation, Conversation)
    conversation.send(BootstrapHello())
    await conversation.receive(BootstrapHello)
    conversation.send(Open(LinkSettings(size=SOURCE_BYTES, depth=orders["depth"])))
    opened = await conversation.receive(Opened)
    device = side.open(None)
    link = MeasuredLink(side, device, opened.settings)
    try:
        link.memory.view[:SOURCE_BYTES] = os.urandom(SOURCE_BYTES)
        link.connect(opened.there)
        conversation.send(Connect(link.here))
        await conversation.receive(Connected)
        link.user = taker = Bulk(link, orders)
        cpu, begun = cpuSeconds(), time.perf_counter()
        taker.start()
        await taker.done
        seconds = time.perf_counter() - begun
        return {
            "value": orders["bytes"] / seconds,
            "seconds": seconds,
            "cpu": cpuSeconds() - cpu,
            "mode": link.route,
        }
    finally:
        link.close()
        side.close(device)


clients = {"series": series, "bulk": bulk}
