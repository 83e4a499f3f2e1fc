"""
The two processes of a measurement on Twisted: C{python -m benchmarks.ends server|client ORDERS}.

Orders and results are JSON. The server writes its port when it listens, and its own result when its standard
input ends. The client writes its result and stops.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from typing import Any

Orders = dict[str, Any]
"""As they came out of JSON."""

SOURCE_BYTES = 64 << 20


def pieces(size: int) -> list[bytes]:
    """A fresh source of 64 MiB, cut into writes: too much for any cache to flatter."""
    return [os.urandom(size) for _ in range(SOURCE_BYTES // size)]


def cpuSeconds() -> float:
    """CPU time of this process so far, in user and in kernel mode."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def memoryBytes(pid: int | str = "self") -> tuple[int, int]:
    """Memory of a process alone, and its share of what it shares by descriptors, both resident."""
    kib = {}
    with open(f"/proc/{pid}/smaps_rollup") as lines:
        for line in lines:
            key, _, value = line.partition(":")
            if key in ("Pss_Anon", "Pss_Shmem"):
                kib[key] = int(value.split()[0])
    return kib["Pss_Anon"] << 10, kib["Pss_Shmem"] << 10


def prepare(orders: Orders) -> None:
    """Pin the process, choose its reactor, hide what shall not be used: before anything else is imported."""
    os.sched_setaffinity(0, {orders["core"]})
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    for name in orders.get("without", ()):
        sys.modules[name] = None  # type: ignore[assignment]  # None makes its import fail, as documented
    from twisted.application.reactors import installReactor

    installReactor(orders.get("reactor", "epoll"))


def tell(message: dict[str, object]) -> None:
    """One line for the process that started us."""
    print(json.dumps(message), flush=True)


def main(role: str, orders: Orders) -> None:
    """Run one end."""
    prepare(orders)
    from twisted.internet.defer import Deferred
    from twisted.internet.endpoints import clientFromString, serverFromString
    from twisted.internet.stdio import StandardIO
    from twisted.internet.task import react

    from benchmarks import connecting, contacts, failing, programs, scenarios

    rooms = (scenarios, programs, connecting, contacts, failing)
    servers = {name: each for room in rooms for name, each in room.servers.items()}
    clients = {name: each for room in rooms for name, each in room.clients.items()}

    async def server(reactor: Any) -> None:
        factory = servers[orders["scenario"]](orders)
        port = await serverFromString(reactor, orders["listen"]).listen(factory)
        told: Deferred[None] = Deferred()
        StandardIO(scenarios.Waiting(told))
        tell({"port": port.getHost().port})
        await told
        tell({"cpu": factory.cpuSeconds(), "memory": factory.memory()})

    async def client(reactor: Any) -> None:
        endpoint = clientFromString(reactor, orders["connect"])
        tell(await clients[orders["scenario"]](reactor, endpoint, orders))
        if orders.get("stays"):  # what is shared with a process that is gone would be the other's alone
            await Deferred()

    react(server if role == "server" else client)


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
