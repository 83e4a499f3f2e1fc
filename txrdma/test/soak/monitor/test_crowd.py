"""500 readers of events over real sockets in a separate process, of which one stops reading."""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from pathlib import Path
from typing import Any

from twisted.internet import reactor as theReactor
from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.endpoints import TCP4ClientEndpoint, TCP4ServerEndpoint
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.task import deferLater, react
from twisted.trial.unittest import TestCase

import txrdma
from txrdma.mad.agent import MADAgent
from txrdma.monitor.reading.poller import FabricPoller
from txrdma.monitor.web.events import MOST_BYTES
from txrdma.monitor.web.site import MonitorSite
from txrdma.monitor.web.watch import Watch
from txrdma.sim.fabric import SimulatedFabric
from txrdma.sim.nets.fattree import fatTree
from txrdma.test.support.processes import Program

READERS = 500
EVENTS = 120
FILLING = 20_000
"""Length of each event; all of them together exceed the buffer of a reader."""

SEND_BYTES = 1 << 16
"""Bytes of the kernel's send buffer of each connection."""

MOST_GROWN = 16 << 20
"""Largest growth of the process in bytes: all events for all readers are a gigabyte."""

MOST_LATE_SECONDS = 30.0
"""Largest delay of an event for the other readers, also on a busy machine."""

REQUEST = b"GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n"

reactor: Any = theReactor


class Reader(Protocol):
    """A reader that counts events and measures their largest delay."""

    def __init__(self, stopsAt: int) -> None:
        """@param stopsAt: number of the event after which it stops reading; 0 for never."""
        self.stopsAt = stopsAt
        self.begun: Deferred[None] = Deferred()
        self.ended: Deferred[None] = Deferred()
        self.events = 0
        self.late = 0.0
        self._rest = b""

    def connectionMade(self) -> None:
        assert self.transport is not None
        self.transport.write(REQUEST)

    def dataReceived(self, data: bytes) -> None:
        """Process received data; each event contains its sending time."""
        if not self.begun.called:
            self.begun.callback(None)
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data: "):
                reported = json.loads(line[6:])
                self.events += 1
                self.late = max(self.late, time.time() - reported["at"])
                if reported["isLast"] and not self.ended.called:
                    self.ended.callback(None)
        if self.stopsAt and self.events >= self.stopsAt:
            self.stopsAt = 0
            transport: Any = self.transport
            transport.pauseProducing()


async def crowd(loop: Any, port: str) -> None:
    """Run all readers: print a line when they read, and one when all except the first have the last event."""
    factory = Factory()
    readers = [Reader(stopsAt=0 if number else 3) for number in range(READERS)]
    waiting = iter(readers)
    factory.buildProtocol = lambda address: next(waiting)  # type: ignore[method-assign,assignment]  # as Twisted means it
    for _ in readers:
        await TCP4ClientEndpoint(loop, "127.0.0.1", int(port)).connect(factory)
    await gatherResults([reader.begun for reader in readers])
    print(json.dumps({"readers": len(readers)}), flush=True)
    await gatherResults([reader.ended for reader in readers[1:]])
    reported = {
        "fewest": min(reader.events for reader in readers[1:]),
        "slow": readers[0].events,
        "late": max(reader.late for reader in readers[1:]),
    }
    print(json.dumps(reported), flush=True)


def residentBytes() -> int:
    """Return the resident memory of this process in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class CrowdTests(TestCase):
    """A site on the real reactor, with readers in another process."""

    timeout = 300

    async def test_slow(self) -> None:
        """A reader that stops reading uses bounded memory, and the others get each event in time."""
        fabric = SimulatedFabric(reactor, fatTree(4))
        agent = MADAgent(reactor, fabric.attach())
        self.addCleanup(agent.close)
        site = MonitorSite(reactor, Watch(FabricPoller(reactor, agent), None, reactor.seconds))
        listening: Any = await TCP4ServerEndpoint(reactor, 0, interface="127.0.0.1").listen(site.factory)
        self.addCleanup(listening.stopListening)
        listening.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BYTES)  # of all that it accepts
        process, port = Program(), str(listening.getHost().port)
        environment = {**os.environ, "PYTHONPATH": str(Path(txrdma.__file__).parent.parent)}
        words = [sys.executable, "-m", "txrdma.test.soak.monitor.test_crowd", port]
        reactor.spawnProcess(process, sys.executable, words, environment)
        self.assertEqual(json.loads(await process.line()), {"readers": READERS})
        self.assertEqual(len(site.hub.readers), READERS)
        before = residentBytes()
        for number in range(EVENTS):
            content = {"at": time.time(), "isLast": number == EVENTS - 1, "filling": "x" * FILLING}
            site.hub.publish("round", content)
            while any(reader._waiting for reader in self.fast(site)):
                await deferLater(reactor, 0.001)  # as many as the others can take, and the slow one cannot
            await deferLater(reactor, 0)
        reported = json.loads(await process.line())
        grown = residentBytes() - before
        self.assertEqual(reported["fewest"], EVENTS)
        self.assertLess(reported["slow"], EVENTS)
        self.assertLess(reported["late"], MOST_LATE_SECONDS)
        (slow,) = [reader for reader in site.hub.readers if reader.dropped]
        self.assertLessEqual(slow._bytes, MOST_BYTES)
        self.assertLess(grown, MOST_GROWN)
        await process.ended
        while site.hub.readers:
            await deferLater(reactor, 0.01)
        site.stop()

    def fast(self, site: MonitorSite) -> list[Any]:
        """Return all readers except the one that is furthest behind."""
        return sorted(site.hub.readers, key=lambda reader: reader.dropped + len(reader._waiting))[:-1]


if __name__ == "__main__":
    react(lambda loop: Deferred.fromCoroutine(crowd(loop, sys.argv[1])))
