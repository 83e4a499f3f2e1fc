"""Contracts: what is opened and closed many times leaves nothing behind."""

from __future__ import annotations

import gc
import os
import resource
from pathlib import Path
from typing import Any, Final

from twisted.internet import reactor as theReactor
from twisted.internet.task import deferLater

from txrdma.testing.failingcalls import EndpointCase

reactor: Any = theReactor

_PAGE: Final = resource.getpagesize()

WARM_UP: Final = 200
"""Number of repetitions after which caches and pools of the allocator are full."""

TIMES: Final = 1000
"""Number of measured repetitions."""

STEPS: Final = 10
"""
Number of measurements: the allocator returns some megabytes now and then, and takes them again soon.
"""

MOST_BYTES: Final = 2 * 1024 * TIMES // 2
"""
Largest growth of resident memory between both halves, as noise of the allocator: 2 KiB for each repetition.
"""

MOST_OBJECTS: Final = TIMES // 2
"""Largest growth of the number of collectable objects: less than one each. Cancelled timers vary by 100."""


def measure() -> dict[str, int]:
    """Count the descriptors, objects, mappings and resident bytes of the process."""
    for _ in range(3):
        gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "objects": len(gc.get_objects()),
        "mappings": len(Path("/proc/self/maps").read_text().splitlines()),
        "bytes": pages * _PAGE,
    }


class RepeatedUseContract:
    """Promises about the resources of a process that has opened and closed something a thousand times."""

    timeout = 600
    slowBecause = "it opens and closes more than a thousand times"

    async def once(self, what: str) -> None:
        """
        Open, use and close.

        @param what: describes this time in error messages.
        """
        raise NotImplementedError

    async def test_flat(self: Any) -> None:
        """Descriptors, mappings, objects and memory do not grow."""
        for number in range(WARM_UP):
            await self.once(f"warming up, {number}")
        await deferLater(reactor, 0.1)
        before = after = measure()
        sizes = []
        for number in range(TIMES):
            await self.once(f"repetition {number}")
            if (number + 1) % (TIMES // STEPS) == 0:
                await deferLater(reactor, 0.1)
                after = measure()
                sizes.append(after["bytes"])
        growth = {name: after[name] - before[name] for name in before}
        growth["bytes"] = max(sizes[STEPS // 2 :]) - max(sizes[: STEPS // 2])
        self.assertLessEqual(growth["descriptors"], 0, growth)
        self.assertLessEqual(growth["mappings"], 8, growth)
        self.assertLessEqual(growth["objects"], MOST_OBJECTS, growth)
        self.assertLessEqual(growth["bytes"], MOST_BYTES, growth)


class RepeatedConnectionsContract(EndpointCase, RepeatedUseContract):
    """
    The same of connections, listeners and devices.

    Each time a listener accepts one connection, both ends send, and everything is closed, devices included.
    """

    async def once(self: Any, what: str) -> None:
        listening = await self.listen()
        self.port = listening.getHost().port
        client = await self.connect(self.here)
        await self.until(lambda: self.served and self.served[0].isMade, what)
        server = self.served[0]
        await self.exchange(client, server, what)
        client.transport.loseConnection()
        if self.isMessages:
            server.transport.loseConnection()
        await self.until(lambda: client.lost and server.lost, what)
        await listening.stopListening()
        own = set(reactor._internalReaders)
        await self.until(lambda: set(reactor.getReaders()) <= own, what)


__all__ = ["RepeatedConnectionsContract", "RepeatedUseContract", "measure"]
