"""The pause of a stream when its link's network fails and it continues on another link."""

from __future__ import annotations

import time
from statistics import median
from typing import Any

from zope.interface import implementer

from twisted.internet.endpoints import connectProtocol
from twisted.internet.interfaces import IPullProducer, IStreamClientEndpoint
from twisted.internet.protocol import Protocol
from twisted.internet.task import deferLater

from benchmarks.orders import Orders
from benchmarks.scenarios import modeOf, Result, Serving, Speaking

WATCHED_SECONDS = 0.3
"""Seconds for which arrivals are measured after a failure."""

PIECE_BYTES = 16 << 10


@implementer(IPullProducer)
class Streaming(Speaking):
    """Writes as much as the peer reads."""

    def connectionMade(self) -> None:
        self._piece = bytes(PIECE_BYTES)
        self.transport.registerProducer(self, False)

    def resumeProducing(self) -> None:
        """Write one more piece."""
        self.transport.write(self._piece)

    def stopProducing(self) -> None:
        """Write no more: the connection has ended."""


class StreamServing(Serving):
    """A server that streams to each client."""

    def build(self) -> Protocol:
        return Streaming()

    def memory(self) -> Result:
        return {}


class Watching(Speaking):
    """Records the longest interval without received bytes."""

    def __init__(self) -> None:
        self.watch()

    def watch(self) -> None:
        """Start a new measurement."""
        self.pause, self._last = 0.0, time.perf_counter()

    def dataReceived(self, data: bytes) -> None:
        now = time.perf_counter()
        self.pause = max(self.pause, now - self._last)
        self._last = now


async def failover(reactor: Any, endpoint: IStreamClientEndpoint, orders: Orders) -> Result:
    """Seconds without a byte when the port of the active link goes down, each time the current one."""
    from txrdma.smc.group.groups import useDevice
    from txrdma.soft.device import openSoftDevice

    device = openSoftDevice(reactor, orders["addresses"], route="rocev2")
    groups = useDevice(reactor, orders["device"], device)
    watching = await connectProtocol(endpoint, Watching())
    transport: Any = watching.transport

    async def links(count: int) -> None:
        while [sum(link.isActive for link in group.links) for group in groups.groups()] != [count]:
            await deferLater(reactor, 0.01)

    await links(2)
    usual, pauses = [], []
    for _ in range(orders["count"]):
        watching.watch()
        await deferLater(reactor, WATCHED_SECONDS)
        usual.append(watching.pause)
        number = transport.stream.link.port.candidate.port
        watching.watch()
        device.setPortEnabled(number, False)
        await deferLater(reactor, WATCHED_SECONDS)
        pauses.append(watching.pause)
        device.setPortEnabled(number, True)
        await links(2)
    return {
        "p50": median(pauses),
        "worst": max(pauses),
        "uncut": max(usual),
        "mode": modeOf(watching),
        "cpu": 0.0,
    }


servers = {"failover": StreamServing}
clients = {"failover": failover}
