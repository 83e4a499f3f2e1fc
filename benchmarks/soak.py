"""
Open and close many kinds of connections for an hour, and measure the resources of both processes::

    python -m benchmarks.soak --minutes 60 --rate 50

Each minute it prints the memory, descriptors and open connections of the client and the server. At the end it
prints the growth from the second to the last quarter. The exit status is 1 if a visit failed or did not end.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from random import Random
from statistics import median
from typing import Any, Final

from twisted.internet.defer import Deferred
from twisted.internet.endpoints import clientFromString, connectProtocol, serverFromString
from twisted.internet.interfaces import IStreamClientEndpoint
from twisted.internet.protocol import connectionDone, Factory
from twisted.internet.task import deferLater, LoopingCall, react
from twisted.python.failure import Failure

from benchmarks.orders import memoryBytes
from benchmarks.scenarios import Echo, modeOf, Speaking

MOST_BYTES: Final = 300 << 10
"""Maximum number of bytes that a connection has echoed: more than its first rings, so that they grow."""

MOST_SECONDS: Final = 20.0
"""Maximum duration of a connection."""


def described(error: BaseException | None) -> str:
    """Format an error with its type."""
    return f"{type(error).__name__}: {error}"


class Visit(Speaking):
    """A connection that has some bytes echoed, stays for a while, and closes or aborts."""

    def __init__(self, reactor: Any, bytesEchoed: int, seconds: float, aborts: bool) -> None:
        self._reactor = reactor
        self._left = self._bytes = bytesEchoed
        self._seconds = seconds
        self._aborts = aborts
        self.over: Deferred[str] = Deferred()
        self._mode = ""
        self.isEarly = True

    def connectionMade(self) -> None:
        self._mode = modeOf(self)
        self.transport.write(bytes(self._bytes))
        if not self._bytes:
            self.leave()

    def dataReceived(self, data: bytes) -> None:
        self._left -= len(data)
        if not self._left:
            self._reactor.callLater(self._seconds, self.leave)

    def leave(self) -> None:
        """Close or abort; a connection that ended before was lost early."""
        self.isEarly = False
        if self._aborts:
            self.transport.abortConnection()
        else:
            self.transport.loseConnection()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        early = f"{self._mode}, lost early: {described(reason.value)}"
        self.over.callback(early if self.isEarly else self._mode)


def someVisit(reactor: Any, random: Random) -> Visit:
    """Return a random visit: most are short and small."""
    size = random.choice((0, 1, 64, 1_000, 20_000, random.randrange(MOST_BYTES)))
    seconds = random.choice((0.0, 0.0, 0.0, 0.1, random.random() * MOST_SECONDS))
    return Visit(reactor, size, seconds, random.random() < 0.1)


def holds(pid: int) -> dict[str, int]:
    """
    Return the private memory of a process, its proportional memory in KiB, and its open descriptors.

    Values of a process that has ended are 0; visits report its end.
    """
    try:
        (own, shared), descriptors = memoryBytes(pid), len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        own = shared = descriptors = 0
    return {"own": own >> 10, "shared": shared >> 10, "descriptors": descriptors}


class Soak:
    """Starts visits, and samples both processes."""

    def __init__(self, reactor: Any, endpoint: IStreamClientEndpoint, server: int, seed: int) -> None:
        self._reactor = reactor
        self._endpoint = endpoint
        self._pids = {"client": os.getpid(), "server": server}
        self._random = Random(seed)
        self._begun = time.monotonic()
        self.ends: Counter[str] = Counter()
        self.begun = self.open = self.failed = 0
        self.lines: list[dict[str, Any]] = []

    def come(self, count: int) -> None:
        """Start a number of visits."""
        for _ in range(count):
            Deferred.fromCoroutine(self._visit())

    async def _visit(self) -> None:
        visit = someVisit(self._reactor, self._random)
        self.begun += 1
        self.open += 1
        try:
            await connectProtocol(self._endpoint, visit)
            self.ends[await visit.over] += 1
            self.failed += visit.isEarly
        except Exception as error:
            self.ends[f"failed: {described(error)}"] += 1
            self.failed += 1
        finally:
            self.open -= 1

    def sample(self) -> None:
        """Sample both processes, and print the values."""
        gc.collect()
        line: dict[str, Any] = {"seconds": round(time.monotonic() - self._begun), "visits": self.begun}
        line["open"] = self.open
        line |= {name: holds(pid) for name, pid in self._pids.items()}
        self.lines.append(line)
        ends = "; ".join(
            "{0} {own:,} + {shared:,} KiB, {descriptors} descriptors".format(name, **line[name])
            for name in self._pids
        )
        print(f"{line['seconds']:6,} s {self.begun:9,} visits, {self.open:5,} open; {ends}", flush=True)

    def growth(self) -> dict[str, float]:
        """
        Return the growth in KiB and descriptors, from the median of the second quarter to that of the last.
        """
        quarter = len(self.lines) // 4
        if not quarter:
            return {}
        halves = self.lines[quarter : 2 * quarter], self.lines[-quarter:]

        def risen(name: str, what: str) -> float:
            before, after = (median(float(line[name][what]) for line in half) for half in halves)
            return after - before

        return {
            f"{n} {what}": risen(n, what) for n in self._pids for what in ("own", "shared", "descriptors")
        }


async def serve(reactor: Any, listen: str) -> None:
    """Echo until standard input ends."""
    port = await serverFromString(reactor, listen).listen(Factory.forProtocol(Echo))
    print(port.getHost().port, flush=True)
    LoopingCall(gc.collect).start(30.0)
    await deferLater(reactor, 1e9)


async def soak(reactor: Any, options: argparse.Namespace) -> None:
    """Run the client, and print the result."""
    command = [sys.executable, "-m", "benchmarks.soak", "--serve", "--listen", options.listen]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            connect = options.connect.format(port=int(server.stdout.readline()))
            run = Soak(reactor, clientFromString(reactor, connect), server.pid, options.seed)
            coming = LoopingCall.withCount(run.come)
            sampling = LoopingCall(run.sample)
            for call, seconds in (
                (coming, 1 / options.rate),
                (sampling, options.minutes * 60 / options.samples),
            ):
                call.start(seconds, now=False)
            await deferLater(reactor, options.minutes * 60 + 1.0)
            coming.stop()
            sampling.stop()
            await deferLater(reactor, MOST_SECONDS + 1.0)
        finally:
            server.terminate()
    growth = run.growth()
    print(f"how the visits went: {dict(run.ends)}, and {run.open} are open")
    print(f"grown from the second quarter to the last: {growth}")
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"lines": run.lines, "ends": run.ends, "growth": growth, "seed": options.seed}, file)
    if run.failed or run.open:
        raise SystemExit(1)


def main() -> None:
    parser = argparse.ArgumentParser("python -m benchmarks.soak", description=(__doc__ or "").splitlines()[1])
    parser.add_argument("--minutes", type=float, default=60.0, help="how long they come and go; default: 60")
    parser.add_argument("--rate", type=float, default=50.0, help="how many come in a second; default: 50")
    parser.add_argument("--samples", type=int, default=60, help="number of samples of memory; default: 60")
    parser.add_argument(
        "--seed", type=int, default=int(time.time()), help="of what the visits are; default: the time"
    )
    parser.add_argument("--listen", default="smc:0:interface=127.0.0.1", help="a server's endpoint string")
    parser.add_argument("--connect", default="smc:127.0.0.1:{port}", help="a client's endpoint string")
    parser.add_argument("--json", metavar="FILE", help="where all figures are written to")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    run: Callable[[Any], Any] = (
        (lambda reactor: serve(reactor, options.listen))
        if options.serve
        else (lambda reactor: soak(reactor, options))
    )
    react(run)


if __name__ == "__main__":
    main()
