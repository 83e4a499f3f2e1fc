"""The first contact of two processes and later connects on its link group, by version and number of links."""

from __future__ import annotations

import time
from statistics import median
from typing import Any

from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.endpoints import connectProtocol
from twisted.internet.interfaces import IStreamClientEndpoint
from twisted.internet.task import deferLater

from benchmarks.connecting import EchoServing, visit
from benchmarks.measuring import MeasurementFailed
from benchmarks.orders import Orders
from benchmarks.scenarios import modeOf, Result, Speaking

SETTLING_SECONDS = 0.3
"""Seconds that a process waits between its imports and its first connect."""

MOST_SECONDS = 20.0
"""Maximum number of seconds until a link group has all its links."""


async def _links(reactor: Any, count: int, begun: float) -> float:
    """Return the seconds since C{begun} until the only link group has that many active links."""
    from txrdma.smc.group.groups import everyGroup

    while [sum(link.isActive for link in group.links) for group in everyGroup()] != [count]:
        if time.perf_counter() - begun > MOST_SECONDS:
            raise MeasurementFailed(f"{count} links were not there within {MOST_SECONDS:g} s")
        await deferLater(reactor, 0.001)
    return time.perf_counter() - begun


async def contact(reactor: Any, endpoint: IStreamClientEndpoint, orders: Orders) -> Result:
    """
    Seconds until the first connection is established, and until its group has all links; then connects in
    sequence and in parallel.

    C{links} in the orders is the number of links that the group must have; without it TCP is measured.
    C{count} connections follow in sequence, three times as many with C{parallel} at a time; each is closed
    when it is established.
    """
    await deferLater(reactor, SETTLING_SECONDS)
    begun = time.perf_counter()
    first = await connectProtocol(endpoint, Speaking())
    result: Result = {"first": time.perf_counter() - begun, "mode": _carrier(first)}
    if links := orders.get("links"):
        result["links"] = await _links(reactor, links, begun)
        result["mode"] += f", links: {links}"
    await visit(endpoint, True)
    taken = []
    for _ in range(orders["count"]):
        begun = time.perf_counter()
        one = await connectProtocol(endpoint, Speaking())
        taken.append(time.perf_counter() - begun)
        if _carrier(one) != _carrier(first):
            raise MeasurementFailed(f"a later connection was {_carrier(one)}")
        one.transport.loseConnection()
    result["later"] = median(taken)
    left = 3 * orders["count"]

    async def several() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            mode = await visit(endpoint, False)
            if mode != modeOf(first):
                raise MeasurementFailed(f"one of many connections was {mode}")

    begun = time.perf_counter()
    await gatherResults([Deferred.fromCoroutine(several()) for _ in range(orders["parallel"])])
    return {**result, "rate": 3 * orders["count"] / (time.perf_counter() - begun)}


def _carrier(protocol: Speaking) -> str:
    """Return the mode of a connection, its route and its version of SMC-R, as far as they are known."""
    status = getattr(protocol.transport, "smc", None)
    mode = modeOf(protocol)
    return mode if status is None else f"{mode}, version {status.version}"


servers = {"contact": EchoServing}
clients = {"contact": contact}
