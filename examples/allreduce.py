"""
All-reduce of a NumPy array over N processes, which form a group.

    txrdma btl-run -n 4 examples/allreduce.py --elements 1000000

The result is compared with NumPy's sum. If mpi4py and mpiexec are installed, their Allreduce is measured as
well.
"""

import argparse
import shutil
import subprocess
import sys
import time

import numpy

from twisted.internet.defer import Deferred
from twisted.internet.task import react

from txrdma import btl

WARMING = 2


def share(rank, elements):
    """Return the array of a rank, which is the same in every run."""
    return numpy.random.default_rng(rank).integers(0, 1000, elements).astype(numpy.float64)


async def play(reactor, wanted):
    group = await btl.Group.join(reactor)
    times = []
    for _ in range(wanted.rounds + WARMING):
        array = share(group.rank, wanted.elements)
        await group.barrier()
        began = time.perf_counter()
        await group.allreduce(array, into=array)
        times.append(time.perf_counter() - began)
    isRight = numpy.array_equal(array, sum(share(rank, wanted.elements) for rank in range(group.size)))
    mine = numpy.array([isRight, -sorted(times[WARMING:])[wanted.rounds // 2]])
    everywhere = await group.reduce(mine, "min")
    await group.close()
    if group.rank == 0:
        report(group.size, wanted, *everywhere)


def report(size, wanted, isRight, negativeSeconds):
    if not isRight:
        sys.exit("the sum is wrong")
    milliseconds = -1000 * negativeSeconds
    print(f"{size} ranks, {wanted.elements} elements: as NumPy has it, {milliseconds:.1f} ms")
    beside = byMPI(size, wanted.elements, wanted.rounds)
    print("mpi4py is not installed" if beside is None else f"mpi4py: {1000 * beside:.1f} ms")


def byMPI(ranks, elements, rounds):
    """Return the seconds of mpi4py's Allreduce with as many elements, or None if it is not installed."""
    program = (
        "import time, numpy\n"
        "from mpi4py import MPI\n"
        f"array, times = numpy.ones({elements}), []\n"
        f"for _ in range({rounds + WARMING}):\n"
        "    began = time.perf_counter(); MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, array)\n"
        "    times.append(time.perf_counter() - began)\n"
        f"if not MPI.COMM_WORLD.rank: print(sorted(times[{WARMING}:])[{rounds // 2}])\n"
    )
    launcher = shutil.which("mpiexec")
    if launcher is None:
        return None
    command = [launcher, "-n", str(ranks), sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True)
    return float(done.stdout) if done.returncode == 0 else None


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description="All-reduce by a group: txrdma btl-run -n 4 examples/allreduce.py"
    )
    parser.add_argument("--elements", type=int, default=250_000, help="of 8 bytes")
    parser.add_argument("--rounds", type=int, default=5)
    react(lambda reactor: Deferred.fromCoroutine(play(reactor, parser.parse_args())))
