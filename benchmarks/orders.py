"""Code shared by both processes of a measurement: orders, data to send, and resource usage."""

from __future__ import annotations

import json
import os
import resource
import sys
from typing import Any

Orders = dict[str, Any]
"""Orders as decoded from JSON."""

SOURCE_BYTES = 64 << 20


def pieces(size: int) -> list[bytes]:
    """Return pieces of a new 64 MiB source, which fits into no cache."""
    return [os.urandom(size) for _ in range(SOURCE_BYTES // size)]


def cpuSeconds() -> float:
    """CPU time of this process so far, in user and in kernel mode."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def memoryBytes(pid: int | str = "self") -> tuple[int, int]:
    """Resident memory of a process: private, and its proportional share of memory shared by descriptors."""
    kib = {}
    with open(f"/proc/{pid}/smaps_rollup") as lines:
        for line in lines:
            key, _, value = line.partition(":")
            if key in ("Pss_Anon", "Pss_Shmem"):
                kib[key] = int(value.split()[0])
    return kib["Pss_Anon"] << 10, kib["Pss_Shmem"] << 10


def prepare(orders: Orders) -> None:
    """Pin the process, install its reactor, and hide modules that must not be used, before other imports."""
    if not any(orders.get(name) for name in ("busy", "clients", "limit")):  # any processor may be used
        os.sched_setaffinity(0, {orders["core"]})
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    for name in orders.get("without", ()):
        sys.modules[name] = None  # type: ignore[assignment]  # None makes its import fail, as documented
    if "socketBuffer" in orders:
        from txrdma.soft.rc import udp

        udp.BUFFER = orders["socketBuffer"]
    name = orders.get("reactor", "epoll")
    if name == "epoll":  # the default reactor, without a search through all plugins
        from twisted.internet import epollreactor

        epollreactor.install()
    elif name == "uvloop":
        import uvloop

        from twisted.internet import asyncioreactor

        asyncioreactor.install(uvloop.new_event_loop())
    else:
        from twisted.application.reactors import installReactor

        installReactor(name)


def sendMessage(message: dict[str, object]) -> None:
    """Print one line of JSON for the process that started this one."""
    print(json.dumps(message), flush=True)


def ownAddress(number: int) -> str:
    """Return a loopback address that is probably unique to this process."""
    pid = os.getpid()
    return f"127.{66 + number}.{pid >> 8 & 0xFF}.{pid & 0xFF or 1}"


def ignored(value: object) -> None:
    """Ignore a result or failure."""
