"""
The downloading process of the demonstration: fetches files by HTTP, a turn at a time, and tells how it went.

Orders come as lines of JSON by standard input, answers go as lines of JSON to standard output. Bodies are
hashed as they come, and not kept: memory that is touched for the first time would cost more than transports.
"""

from __future__ import annotations

import hashlib
import json
import resource
import sys
import time
from collections.abc import Iterator
from typing import Any, cast
from urllib.parse import quote

import treq
from treq.client import HTTPClient

from twisted.application.reactors import installReactor
from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.task import cooperate, react
from twisted.web.client import Agent, HTTPConnectionPool
from twisted.web.iweb import IAgent

from txrdma.smc.stream import connectionstatus as status

PROGRESS_SECONDS = 0.1


def cpuSeconds() -> float:
    """CPU time of this process so far, in user and in kernel mode."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def onProgress(message: dict[str, object]) -> None:
    """One line for the process that started us."""
    print(json.dumps(message), flush=True)


def agentFor(reactor: object, kind: str, pool: HTTPConnectionPool) -> IAgent:
    """What C{http:} addresses are fetched by: over SMC-R with C{smc}, else over plain TCP."""
    if kind == "smc":
        from txrdma.web import SMCAgentEndpointFactory

        return cast(IAgent, Agent.usingEndpointFactory(reactor, SMCAgentEndpointFactory(reactor), pool))
    return Agent(reactor, pool=pool)


class Download:
    """Files of one server, a few at a time, and what came of them."""

    def __init__(self, client: HTTPClient, base: str, parallel: int) -> None:
        self._client = client
        self._base = base
        self._parallel = parallel
        self._reportedAt = 0.0
        self._bytes = 0
        self._latencies: list[float] = []
        self._hashes: dict[str, str] = {}

    async def turn(self, names: list[str]) -> dict[str, object]:
        """Fetch these; what it took."""
        self._bytes = 0
        self._latencies = []
        cpu, begun = cpuSeconds(), time.perf_counter()
        work = self._work(names)  # the same iterator for all: each takes the next name when it is ready
        await gatherResults([cooperate(work).whenDone() for _ in range(self._parallel)], consumeErrors=True)
        return {
            "seconds": time.perf_counter() - begun,
            "cpu": cpuSeconds() - cpu,
            "bytes": self._bytes,
            "latencies": self._latencies,
        }

    def _work(self, names: list[str]) -> Iterator[Deferred[None]]:
        for name in names:
            yield Deferred.fromCoroutine(self._fetch(name))

    async def _fetch(self, name: str) -> None:
        digest = hashlib.sha256()

        def collect(data: bytes) -> None:
            digest.update(data)
            self._bytes += len(data)
            now = time.monotonic()
            if now - self._reportedAt > PROGRESS_SECONDS:
                self._reportedAt = now
                onProgress({"progress": self._bytes})

        begun = time.perf_counter()
        response = await self._client.get(f"{self._base}/{quote(name)}")
        if response.code != 200:
            raise RuntimeError(f"{name}: the server answered {response.code}")
        await treq.collect(response, collect)
        self._latencies.append(time.perf_counter() - begun)
        self._hashes[name] = digest.hexdigest()

    def hashes(self) -> dict[str, str]:
        """SHA-256 of every body."""
        return self._hashes


async def main(reactor: object) -> None:
    """Carry out orders until there are no more."""
    orders: dict[str, Any] = json.loads(sys.stdin.readline())  # as the parent has written it
    pool = HTTPConnectionPool(reactor, persistent=True)
    pool.maxPersistentPerHost = orders["parallel"]
    client = HTTPClient(agentFor(reactor, orders["kind"], pool))
    download = Download(client, orders["base"], orders["parallel"])
    for line in sys.stdin:
        order = json.loads(line)
        if order == "connections":
            onProgress({"answer": [counters.toDict() for counters in status.statuses()]})
        elif order == "hashes":
            onProgress({"answer": download.hashes()})
        else:
            onProgress({"answer": await download.turn(order)})
    await pool.closeCachedConnections()


if __name__ == "__main__":
    for name in sys.argv[1:]:
        installReactor(name)
    react(main)
