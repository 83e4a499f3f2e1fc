"""
Many senders of the byte transfer layer: processes on one core, forked after the imports.

Each has its own module, and sends messages of C{write} bytes to one receiver. Messages count that arrive
within C{seconds} after all senders have been connected and have sent for L{WARMING_SECONDS}.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from benchmarks.orders import Orders, ownAddress, prepare, sendMessage

ASK = 1
"""Tag of messages to the server."""

MOST_BYTES = 1 << 20
"""Maximum number of unacknowledged bytes of one sender; two messages are always allowed."""

WARMING_SECONDS = 0.5
"""Seconds for which all send before messages count."""


def main(orders: Orders) -> None:
    """Fork the senders, start them when the last is connected, and print the result."""
    # import everything once, but no reactor: its descriptors must not be shared
    from txrdma.btl import connections  # noqa: F401  # imported before the fork

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
    """Run one sender until it has reported its result."""
    prepare(orders)
    from zope.interface import implementer

    from twisted.internet.defer import Deferred
    from twisted.internet.task import deferLater, react

    from txrdma import btl
    from txrdma.messages.interfaces import IMessageProtocolFactory
    from txrdma.messages.protocol import MessageProtocol

    data = os.urandom(orders["write"])

    @implementer(IMessageProtocolFactory)
    class Sending(MessageProtocol):
        """Sends until its process is killed."""

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
        os.read(begin, 1)  # until the first process has the results of all
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
