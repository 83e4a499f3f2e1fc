"""
The downloading process of the demonstration: fetches every file of a list by HTTP and tells how it went.

Reads its orders as one line of JSON from standard input; writes lines of JSON: progress, then the result.
Bodies are hashed after the clock has stopped, so the time is that of the transport and of HTTP.
"""

from __future__ import annotations

import hashlib
import json
import os
import resource
import sys
import time
from collections.abc import Iterator
from typing import cast, TextIO
from urllib.parse import quote

import treq
from treq.client import HTTPClient

from twisted.application.reactors import installReactor
from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.task import cooperate, react
from twisted.web.client import Agent, HTTPConnectionPool
from twisted.web.iweb import IAgent

from txrdma.smc import status

PROGRESS_SECONDS = 0.1


def cpuSeconds() -> float:
    """CPU time of this process so far, in user and in kernel mode."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def agentFor(reactor: object, kind: str, pool: HTTPConnectionPool) -> IAgent:
    """What C{http:} addresses are fetched by: over SMC-R with C{smc}, else over plain TCP."""
    if kind == "smc":
        from txrdma.web import SMCAgentEndpointFactory

        return cast(IAgent, Agent.usingEndpointFactory(reactor, SMCAgentEndpointFactory(reactor), pool))
    return Agent(reactor, pool=pool)


class Download:
    """All files of a list, a few at a time, and what came of it."""

    def __init__(self, client: HTTPClient, base: str, names: list[str], parallel: int, out: TextIO) -> None:
        self._client = client
        self._base = base
        self._names = names
        self._parallel = parallel
        self._out = out
        self._told = 0.0
        self.bytes = 0
        self.files = 0
        self.latencies: list[float] = []
        self.bodies: dict[str, list[bytes]] = {}

    async def run(self) -> None:
        """Fetch the files of the list."""
        work = self._work()  # the same iterator for all: each takes the next name when it is ready
        await gatherResults([cooperate(work).whenDone() for _ in range(self._parallel)], consumeErrors=True)

    def _work(self) -> Iterator[Deferred[None]]:
        for name in self._names:
            yield Deferred.fromCoroutine(self.fetch(name))

    async def fetch(self, name: str) -> None:
        """One file."""
        body: list[bytes] = []

        def collect(data: bytes) -> None:
            body.append(data)
            self.bytes += len(data)
            self._tell()

        begun = time.perf_counter()
        response = await self._client.get(f"{self._base}/{quote(name)}")
        if response.code != 200:
            raise RuntimeError(f"{name}: the server answered {response.code}")
        await treq.collect(response, collect)
        self.latencies.append(time.perf_counter() - begun)
        self.files += 1
        self.bodies[name] = body
        self._tell()

    def _tell(self) -> None:
        now = time.monotonic()
        if now - self._told > PROGRESS_SECONDS:
            self._told = now
            self._write({"bytes": self.bytes, "files": self.files})

    def _write(self, message: dict[str, object]) -> None:
        print(json.dumps(message), file=self._out, flush=True)

    def hashes(self) -> dict[str, str]:
        """SHA-256 of every body."""
        answer = {}
        for name, body in self.bodies.items():
            digest = hashlib.sha256()
            for data in body:
                digest.update(data)
            answer[name] = digest.hexdigest()
        return answer


async def main(reactor: object) -> None:
    """Read the orders, carry them out, tell the result."""
    orders = json.loads(sys.stdin.readline())
    pool = HTTPConnectionPool(reactor, persistent=True)
    pool.maxPersistentPerHost = orders["parallel"]
    client = HTTPClient(agentFor(reactor, orders["kind"], pool))
    download = Download(client, orders["base"], orders["names"], orders["parallel"], sys.stdout)
    cpu, begun = cpuSeconds(), time.perf_counter()
    await download.run()
    largeBegun = time.perf_counter()
    await download.fetch(orders["large"])
    ended = time.perf_counter()
    cpu = cpuSeconds() - cpu
    # The parent looks at the server while our connections are still there, and says when it has.
    result = {
        "pid": os.getpid(),
        "seconds": ended - begun,
        "largeSeconds": ended - largeBegun,
        "cpu": cpu,
        "files": download.files,
        "bytes": download.bytes,
        "latencies": download.latencies,
        "connections": [told.toDict() for told in status.statuses()],
    }
    print(json.dumps({"result": result}), flush=True)
    sys.stdin.readline()
    print(json.dumps({"hashes": download.hashes()}), flush=True)
    await pool.closeCachedConnections()


if __name__ == "__main__":
    for name in sys.argv[1:]:
        installReactor(name)
    react(main)
