"""
The downloading process of the demonstration, which fetches files by HTTP in turns and reports the results.

Orders are lines of JSON on standard input, and answers lines of JSON on standard output. Bodies are hashed
and not stored: first access to new memory would cost more than transport.
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
from twisted.internet.threads import deferToThread
from twisted.web.client import Agent, HTTPConnectionPool
from twisted.web.iweb import IAgent

from txrdma.smc.stream import connectionstatus as status

PROGRESS_SECONDS = 0.1


def cpuSeconds() -> float:
    """CPU time of this process so far, in user and in kernel mode."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def onProgress(message: dict[str, object]) -> None:
    """Write a message as a line of JSON for the parent process."""
    print(json.dumps(message), flush=True)


def agentFor(reactor: object, kind: str, pool: HTTPConnectionPool) -> IAgent:
    """Return the agent for C{http:} URLs: over SMC-R if C{kind} is C{smc}, else over TCP."""
    if kind == "smc":
        from txrdma.web import SMCAgentEndpointFactory

        return cast(IAgent, Agent.usingEndpointFactory(reactor, SMCAgentEndpointFactory(reactor), pool))
    return Agent(reactor, pool=pool)


class Download:
    """Parallel downloads from one server, and their results."""

    def __init__(self, client: HTTPClient, base: str, parallel: int) -> None:
        self._client = client
        self._base = base
        self._parallel = parallel
        self._reportedAt = 0.0
        self._bytes = 0
        self._latencies: list[float] = []
        self._hashes: dict[str, str] = {}

    async def turn(self, names: list[str]) -> dict[str, object]:
        """Download these files, and return the duration, CPU time, bytes and latencies."""
        self._bytes = 0
        self._latencies = []
        cpu, begun = cpuSeconds(), time.perf_counter()
        work = self._work(names)  # all tasks share the iterator, and take the next name when ready
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
        """Return the SHA-256 of each downloaded file by name."""
        return self._hashes


async def main(reactor: object) -> None:
    """Execute orders until standard input ends."""
    orders: dict[str, Any] = json.loads(sys.stdin.readline())  # written by the parent
    pool = HTTPConnectionPool(reactor, persistent=True)
    pool.maxPersistentPerHost = orders["parallel"]
    client = HTTPClient(agentFor(reactor, orders["kind"], pool))
    download = Download(client, orders["base"], orders["parallel"])
    while line := await deferToThread(sys.stdin.readline):  # not to block answers to `txrdma connections`
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
