"""
Measure Twisted's UDP in the roles of L{benchmarks.ends}.

A datagram has the payload of a full RoCEv2 packet. The receiver acknowledges some datagrams, and the sender
bounds the number of unacknowledged ones, because most would be dropped otherwise. Lost datagrams are not sent
again.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from benchmarks.orders import Orders, pieces, prepare, sendMessage

PAYLOAD_BYTES = 4096
WINDOW = 16
ANSWERED = 4
"""Number of datagrams for each acknowledgement."""

STALL_SECONDS = 0.05


def main(role: str, orders: Orders) -> None:
    prepare(orders)
    from twisted.internet.defer import Deferred
    from twisted.internet.protocol import DatagramProtocol
    from twisted.internet.stdio import StandardIO
    from twisted.internet.task import react

    from benchmarks.scenarios import Waiting

    class Sink(DatagramProtocol):
        """Acknowledges with the number of received datagrams."""

        count = 0

        def datagramReceived(self, datagram: bytes, addr: Any) -> None:
            self.count += 1
            if self.count % ANSWERED == 0:
                assert self.transport is not None
                self.transport.write(self.count.to_bytes(8, "little"), addr)

    class Source(DatagramProtocol):
        """Sends a number of datagrams, and counts those that arrived."""

        def __init__(self, reactor: Any) -> None:
            self._reactor = reactor
            self._pieces = pieces(PAYLOAD_BYTES)
            self._count = orders["bytes"] // PAYLOAD_BYTES
            self._sent = self._came = self._lost = 0
            self.done: Deferred[float] = Deferred()

        def startProtocol(self) -> None:
            assert self.transport is not None
            self.transport.connect("127.0.0.1", orders["port"])
            self._begun = self._latest = time.perf_counter()
            self._stalled = self._reactor.callLater(STALL_SECONDS, self._stall, 0)
            self._send()

        def datagramReceived(self, datagram: bytes, addr: Any) -> None:
            self._came = int.from_bytes(datagram, "little")
            self._latest = time.perf_counter()
            self._send()

        def _send(self) -> None:
            assert self.transport is not None
            write, source = self.transport.write, self._pieces
            end = min(self._came + self._lost + WINDOW, self._count)
            for index in range(self._sent, end):
                write(source[index % len(source)], None)
            self._sent = max(self._sent, end)

        def _stall(self, came: int) -> None:
            """Give up on unacknowledged datagrams."""
            if came == self._came:
                if self._sent == self._count:
                    self.done.callback(self._came * PAYLOAD_BYTES / (self._latest - self._begun))
                    return
                self._lost = self._sent - self._came
                self._send()
            self._stalled = self._reactor.callLater(STALL_SECONDS, self._stall, self._came)

    async def server(reactor: Any) -> None:
        port = reactor.listenUDP(0, Sink(), interface="127.0.0.1", maxPacketSize=65536)
        notified: Deferred[None] = Deferred()
        StandardIO(Waiting(notified))
        sendMessage({"port": port.getHost().port})
        await notified
        sendMessage({})

    async def client(reactor: Any) -> None:
        source = Source(reactor)
        reactor.listenUDP(0, source, interface="127.0.0.1")
        sendMessage({"value": await source.done, "mode": "UDP"})

    react(server if role == "server" else client)


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
