"""
Run one member of a group, for a measurement of collective operations.

C{txrdma btl-run -n 4 python -m benchmarks.btlgroup ORDERS} starts the members, with the orders as JSON.
With C{route=rocev2} in them the members exchange messages over UDP instead of sharing memory.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from contextlib import suppress
from struct import Struct
from typing import Any
from unittest.mock import patch

from benchmarks.orders import Orders, ownAddress, sendMessage

WARMING = 20
"""Operations that are not measured."""

WAITING, KILLED, FAILED = 1, 2, 3
"""Tags of messages: a member waits; the time at which one is killed; seconds until operations have failed."""

_SECONDS = Struct("d")


async def _noMemory(*_: object) -> None:
    """Share no memory with the other members, as between hosts."""


async def death(group: Any) -> float:
    """Kill the last member; return the longest time in seconds until operations of another have failed."""
    from twisted.internet.defer import gatherResults

    from txrdma.btl.groups.errors import GroupFailed

    others = [group.transport(rank) for rank in range(group.size - 1) if rank != group.rank]
    if group.rank == group.size - 1:
        await gatherResults([each.receive(WAITING) for each in others])
        now = _SECONDS.pack(time.monotonic())  # the same clock in all processes
        await gatherResults([each.send(KILLED, now) for each in others])
        os.kill(os.getpid(), signal.SIGKILL)
    last = group.transport(group.size - 1)
    pending = [group.barrier() for _ in range(3)]
    last.post(WAITING, b"")
    (killedAt,) = _SECONDS.unpack(await last.receive(KILLED))
    for each in pending:
        with suppress(GroupFailed):
            await each
            raise ValueError("an operation has not failed")
    seconds: float = time.monotonic() - killedAt
    if group.rank:
        await group.transport(0).send(FAILED, _SECONDS.pack(seconds))
        return seconds
    found = await gatherResults([each.receive(FAILED) for each in others])
    times: list[float] = [_SECONDS.unpack(each)[0] for each in found]
    return max(seconds, *times)


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
        if orders["scenario"] == "death":
            seconds = await death(group)
            await group.close()
            if group.rank == 0:
                sendMessage({"value": seconds, "mode": "btl shared memory"})
            return
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
