"""
Measure mpi4py: rank 0 is the client, rank 1 the server; or a collective operation of all ranks.

C{mpiexec} starts it, with the orders as JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time

from mpi4py import MPI

from benchmarks.orders import cpuSeconds, Orders, pieces, sendMessage

WARMING = 200


def roundTrip(orders: Orders) -> None:
    """Round trips of a small message."""
    world = MPI.COMM_WORLD
    message, count = bytearray(orders["size"]), orders["count"]
    for left in range(count + WARMING, 0, -1):
        if left == count:
            begun = time.perf_counter()
        if world.rank == 0:
            world.Send(message, 1)
            world.Recv(message, 1)
        else:
            world.Recv(message, 0)
            world.Send(message, 0)
    if world.rank == 0:
        sendMessage({"value": (time.perf_counter() - begun) / count})


def messages(orders: Orders) -> None:
    """Small messages in one direction, and an answer to the last one."""
    world = MPI.COMM_WORLD
    source = pieces(orders["write"]) if world.rank == 0 else []
    buffer, count = bytearray(orders["write"]), orders["count"]
    world.Barrier()
    cpu, begun = cpuSeconds(), time.perf_counter()
    for number in range(count):
        if world.rank == 0:
            world.Send(source[number % len(source)], 1)
        else:
            world.Recv(buffer, 0)
    if world.rank == 1:
        world.Send(b"!", 0)
        return
    world.Recv(bytearray(1), 1)
    seconds = time.perf_counter() - begun
    sendMessage({"value": count / seconds, "cpu": (cpuSeconds() - cpu) / count})


def throughput(orders: Orders) -> None:
    """Messages in one direction, and an answer to the last one."""
    world = MPI.COMM_WORLD
    source = pieces(orders["write"]) if world.rank == 0 else []
    buffer = bytearray(orders["write"])
    world.Barrier()
    begun = time.perf_counter()
    for number in range(orders["bytes"] // orders["write"]):
        if world.rank == 0:
            world.Send(source[number % len(source)], 1)
        else:
            world.Recv(buffer, 0)
    world.Barrier()
    if world.rank == 0:
        sendMessage({"value": orders["bytes"] / (time.perf_counter() - begun)})


def allreduce(orders: Orders) -> None:
    """All-reduce of an array, in place."""
    import numpy

    world = MPI.COMM_WORLD
    array, count = numpy.ones(orders["size"] // 8), orders["count"]
    for left in range(count + WARMING // 10, 0, -1):
        if left == count:
            world.Barrier()
            begun = time.perf_counter()
        world.Allreduce(MPI.IN_PLACE, array, MPI.MAX)
    if world.rank == 0:
        sendMessage({"value": (time.perf_counter() - begun) / count})


if __name__ == "__main__":
    given: Orders = json.loads(sys.argv[1])
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[MPI.COMM_WORLD.rank % len(cores)]})
    scenarios = {
        "roundTrip": roundTrip,
        "messages": messages,
        "throughput": throughput,
        "allreduce": allreduce,
    }
    scenarios[given["scenario"]](given)
