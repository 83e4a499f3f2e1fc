"""
Many senders of the byte transfer layer: processes on one core, forked from one that has imported all.

Each has a module of its own, and sends messages of C{write} bytes to the one receiver. What has arrived
within C{seconds} counts, when all are connected and have sent for a while.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from benchmarks.orders import Orders, ownAddress, prepare, sendMessage

ASK = 1
"""The tag of what the server is sent."""

MOST_BYTES = 1 << 20
"""Bytes that one sender has under way, at least two messages."""

WARMING_SECONDS = 0.5
"""Seconds for which all send before it counts."""


def main(orders: Orders) -> None:
    """Fork, let all of them begin when the last is connected, and tell what came of it."""
    # What all need is imported once; a reactor, which has descriptors, must not be shared.
    from txrdma.btl import connections  # noqa: F401  # as said

    assert "twisted.internet.reactor" not in sys.modules
    count = orders["senders"]
    ready, begin = os.pipe(), os.pipe()
    results = []
    for _ in range(count):
        result = os.pipe()
        if not os.fork():
            for descriptor in (begin[1], result[0]):
                os.close(descriptor)
            _send(orders, ready[1], begin[0], result[1])
            return
        os.close(result[1])
        results.append(result[0])
    os.close(ready[1])
    left = count
    while left:
        received = os.read(ready[0], left)
        if not received:
            raise SystemExit("a sender has ended before it was connected")
        left -= len(received)
    os.close(begin[1])
    rates = []
    for descriptor in results:
        with os.fdopen(descriptor) as lines:
            rates.append(float(json.loads(lines.read())["bytes"]) / orders["seconds"])
    for _ in range(count):
        os.wait()
    squares = count * sum(rate * rate for rate in rates)
    sendMessage(
        {
            "value": sum(rates),
            "jain": sum(rates) ** 2 / squares if squares else 0.0,
            "mode": "btl shared memory",
        }
    )


def _send(orders: Orders, ready: int, begin: int, result: int) -> None:
    """One of the senders, until it has told its result."""
    prepare(orders)
    from twisted.internet.defer import Deferred
    from twisted.internet.task import deferLater, react

    from txrdma import btl
    from txrdma.messages.protocol import MessageProtocol

    data = os.urandom(orders["write"])

    class Sending(MessageProtocol):
        """Sends for as long as it lives."""

        arrived = 0

        def buildProtocol(self, peer: object) -> MessageProtocol:
            return self

        def send(self, error: Exception | None = None) -> None:
            if error is None:
                self.arrived += 1
                self.transport.post(ASK, data, self.send)

    async def run(reactor: Any) -> None:
        protocol = Sending()
        device = f"soft:{ownAddress(1)}"
        await btl.connect(reactor, "127.0.0.1", orders["port"], protocol, device)
        os.write(ready, b"!")
        os.close(ready)
        os.read(begin, 1)  # until the first process has heard of all
        for _ in range(max(2, MOST_BYTES // orders["write"])):
            protocol.send()
        await deferLater(reactor, WARMING_SECONDS)
        before = protocol.arrived
        await deferLater(reactor, orders["seconds"])
        bytesArrived = (protocol.arrived - before) * orders["write"]
        os.write(result, json.dumps({"bytes": bytesArrived}).encode())
        os.close(result)
        protocol.transport.abortConnection()

    react(lambda reactor: Deferred.fromCoroutine(run(reactor)))
