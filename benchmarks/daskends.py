"""
Run a scheduler, a client and two workers of Dask, for a measurement of its communication.

C{python -m benchmarks.daskends ORDERS} starts them, with C{protocol} and other orders as JSON: C{count} of
small tasks, or C{bytes} that each of two workers has and exchanges with the other one.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from contextlib import ExitStack
from importlib import import_module
from typing import Any

from benchmarks.orders import Orders, sendMessage

WORKER = ("-m", "distributed.cli.dask_worker", "--no-nanny", "--no-dashboard", "--nthreads", "1")

PARTS = 8
"""Parts of the data of each worker in a shuffle."""


def double(value: int) -> int:
    """Compute as little as possible."""
    return 2 * value


async def tasks(client: Any, orders: Orders) -> float:
    """Return the number of small tasks in a second."""
    await client.gather(client.map(double, range(100)))
    begun = time.perf_counter()
    await client.gather(client.map(double, range(100, 100 + orders["count"])))
    return float(orders["count"] / (time.perf_counter() - begun))


async def shuffle(client: Any, orders: Orders) -> float:
    """Return the bytes in a second that two workers get from each other."""
    import numpy

    places = list(await client.scheduler.ncores())
    size = orders["bytes"] // PARTS
    made = {
        place: [
            client.submit(numpy.full, size, part, "u1", workers=[place], pure=False) for part in range(PARTS)
        ]
        for place in places
    }
    await client.gather([client.submit(len, each) for parts in made.values() for each in parts])
    begun = time.perf_counter()
    got = [
        client.submit(len, each, workers=[other], pure=False)
        for place, other in zip(places, reversed(places), strict=True)
        for each in made[place]
    ]
    if sum(await client.gather(got)) != 2 * PARTS * size:
        raise ValueError("data is missing")
    return float(2 * PARTS * size / (time.perf_counter() - begun))


async def main(orders: Orders) -> None:
    distributed: Any = import_module("distributed")
    where: dict[str, Any] = {"dashboard_address": None, "host": "127.0.0.1", "protocol": orders["protocol"]}
    with ExitStack() as stack:
        async with distributed.Scheduler(port=0, **where) as scheduler:
            for _ in range(2):
                command = [sys.executable, *WORKER, "--host", "127.0.0.1", scheduler.address]
                process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                stack.callback(process.wait)
                stack.callback(process.kill)
            async with distributed.Client(scheduler.address, asynchronous=True) as client:
                await client.wait_for_workers(2)
                scenarios = {"daskTasks": tasks, "daskShuffle": shuffle}
                value = await scenarios[orders["scenario"]](client, orders)
    sendMessage({"value": value, "mode": orders["protocol"]})


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
