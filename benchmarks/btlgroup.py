"""
Run one member of a group, for a measurement of collective operations.

C{txrdma btl-run -n 4 python -m benchmarks.btlgroup ORDERS} starts the members, with the orders as JSON.
With C{route=rocev2} in them the members exchange messages over UDP instead of sharing memory.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any
from unittest.mock import patch

from benchmarks.orders import Orders, ownAddress, sendMessage

WARMING = 20
"""Operations that are not measured."""


async def _noMemory(*_: object) -> None:
    """Share no memory with the other members, as between hosts."""


def main(orders: Orders) -> None:
    from twisted.internet import epollreactor

    epollreactor.install()
    import numpy

    from twisted.internet.defer import Deferred
    from twisted.internet.task import react

    from txrdma.btl.groups import group as groups

    isUDP = orders.get("route") == "rocev2"
    device = f"soft:{ownAddress(0)}:route=rocev2" if isUDP else None
    if isUDP:
        patch.object(groups, "shareMemory", _noMemory).start()

    async def play(reactor: Any) -> None:
        group = await groups.Group.join(reactor, device=device)
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[group.rank % len(cores)]})
        array: Any = numpy.ones(orders["size"] // 8)  # no buffer for the types of Python 3.10
        count = orders["count"]
        for left in range(count + WARMING, 0, -1):
            if left == count:
                await group.barrier()
                begun = time.perf_counter()
            await group.allreduce(array, "max", into=array)
        seconds = time.perf_counter() - begun
        await group.close()
        if group.rank == 0:
            sendMessage({"value": seconds / count, "mode": "btl UDP" if isUDP else "btl shared memory"})

    react(lambda reactor: Deferred.fromCoroutine(play(reactor)))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
