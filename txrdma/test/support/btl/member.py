"""A member of a group for tests: C{txrdma btl-run -n 3 .../member.py ROLE}."""

from __future__ import annotations

import atexit
import errno
import os
import signal
import socket
import sys
import time
from array import array
from contextlib import suppress
from typing import Any

from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.task import react

from txrdma.btl.groups.errors import GroupFailed
from txrdma.btl.groups.group import Group


async def main(reactor: Any, role: str) -> None:
    if role == "listening":
        listen()
    group = await Group.join(reactor)
    if role == "sum":
        for length in (1, 100_000):
            total = await group.allreduce(array("q", [group.rank + 1]) * length)
            assert total == array("q", [6]) * length
        print("rank", group.rank, "of", group.size)
    elif role == "killed":
        if group.rank == 1:
            await gatherResults([group.transport(other).receive(1) for other in (0, 2)])
            os.kill(os.getpid(), signal.SIGKILL)
        waiting = [group.barrier() for _ in range(2)]
        group.transport(1).post(1, b"waiting")
        await gatherResults([each.addErrback(failed) for each in waiting])
    elif role == "raising":
        if group.rank == 1:
            others = [await group.transport(rank).receive(1) for rank in (0, 2)]
            atexit.register(waitForEnd, [int(bytes(each)) for each in others])
            raise SystemExit(3)
        group.transport(1).post(1, b"%d" % os.getpid())
        await group.barrier()
    elif role == "waiting":
        print("waiting", flush=True)
        await Deferred()
    await group.close()


def failed(failure: Any) -> None:
    """Print why an operation has failed."""
    failure.trap(GroupFailed)
    print(f"failed because of rank {failure.value.rank}: {failure.value}", flush=True)


def waitForEnd(processes: list[int]) -> None:
    """Return when these processes have ended."""
    for process in processes:
        with suppress(ProcessLookupError):
            while True:
                os.kill(process, 0)
                time.sleep(0.01)


def listen() -> None:
    """Listen as the first process of C{torch.distributed} does, which others cannot prevent."""
    if os.environ["RANK"] == "0":
        where = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        with socket.socket() as other:
            other.settimeout(0)
            try:
                other.bind(where)
            except OSError as error:
                assert error.errno == errno.EADDRINUSE, error
            else:
                raise AssertionError("the port is not reserved")
        with socket.create_server(("", where[1])):
            print("listening")


if __name__ == "__main__":
    react(lambda reactor, role: Deferred.fromCoroutine(main(reactor, role)), sys.argv[1:])
