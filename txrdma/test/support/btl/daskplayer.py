"""A scheduler and a client of Dask, and two workers in separate processes, one of which is killed."""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import ExitStack
from subprocess import Popen
from typing import Any

import distributed

WORKER = ("-m", "distributed.cli.dask_worker", "--no-nanny", "--no-dashboard", "--nthreads", "1")


async def main(protocol: str, stack: ExitStack) -> None:
    where: dict[str, Any] = {"dashboard_address": None, "host": "127.0.0.1", "protocol": protocol}
    async with distributed.Scheduler(port=0, **where) as scheduler:
        for _ in range(2):
            process = Popen([sys.executable, *WORKER, "--host", "127.0.0.1", scheduler.address])
            stack.callback(process.wait)
            stack.callback(process.kill)
        async with distributed.Client(scheduler.address, asynchronous=True) as client:
            await client.wait_for_workers(2)
            one, other = scheduler.workers
            data = client.submit(bytearray, 3_000_000, workers=[one])
            print(await client.submit(len, data, workers=[other]), flush=True)
            pid = await client.submit(os.getpid, workers=[other])
            os.kill(pid, 9)
            while other in scheduler.workers:
                await asyncio.sleep(0.01)
            print("noticed", await client.submit(len, data), flush=True)


if __name__ == "__main__":
    with ExitStack() as processes:
        asyncio.run(asyncio.wait_for(main(sys.argv[1], processes), 100))
