"""
What both processes of a measurement need: their orders, bytes to send, and what they have used.
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
    if not (orders.get("busy") or orders.get("clients")):  # otherwise the scheduler distributes all processes
        os.sched_setaffinity(0, {orders["core"]})
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    for name in orders.get("without", ()):
        sys.modules[name] = None  # type: ignore[assignment]  # None makes its import fail, as documented
    name = orders.get("reactor", "epoll")
    if name == "epoll":  # as programs have it that name none, without a look through all plugins
        from twisted.internet import epollreactor

        epollreactor.install()
    else:
        from twisted.application.reactors import installReactor

        installReactor(name)


def sendMessage(message: dict[str, object]) -> None:
    """One line for the process that started us."""
    print(json.dumps(message), flush=True)


def ownAddress(number: int) -> str:
    """A loopback address that no other process of this host has, but by accident."""
    pid = os.getpid()
    return f"127.{66 + number}.{pid >> 8 & 0xFF}.{pid & 0xFF or 1}"


def ignored(value: object) -> None:
    """Take what nobody wants to be told."""
