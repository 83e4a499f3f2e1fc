"""
The first contact of two processes, and the connects that follow on its link group: by version and by links.
"""

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
"""How long a process that has imported everything waits for its first connect."""

MOST_SECONDS = 20.0
"""The longest until a link group has all its links."""


async def _links(reactor: Any, count: int, begun: float) -> float:
    """Seconds since C{begun} until the one link group has that many links, all of them in use."""
    from txrdma.smc.group.groups import everyGroup

    while [sum(link.isActive for link in group.links) for group in everyGroup()] != [count]:
        if time.perf_counter() - begun > MOST_SECONDS:
            raise MeasurementFailed(f"{count} links were not there within {MOST_SECONDS:g} s")
        await deferLater(reactor, 0.001)
    return time.perf_counter() - begun


async def contact(reactor: Any, endpoint: IStreamClientEndpoint, orders: Orders) -> Result:
    """
    Seconds until the first connection is there, and all links of its group; then connects by one and by many.

    C{links} in the orders is how many links the group has to have; without, it is TCP. C{count} connections
    follow one by one, three times as many C{parallel} at a time; each is closed when it is there.
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
    """The mode of a connection, its route, and the version of SMC-R, as far as they are known."""
    status = getattr(protocol.transport, "smc", None)
    mode = modeOf(protocol)
    return mode if status is None else f"{mode}, version {status.version}"


servers = {"contact": EchoServing}
clients = {"contact": contact}
