"""
Ring all-reduce of a NumPy array over N processes, with messages of txrdma's byte transfer layer.

    python examples/allreduce.py --ranks 4 --elements 1000000

Each rank sends to the next one. In N - 1 steps every block of the array is summed on its way around the ring;
in N - 1
further steps all ranks get all blocks. The result is compared with NumPy's sum. If mpi4py and mpiexec are
installed,
their Allreduce is measured as well.
"""

import argparse
import shutil
import subprocess
import sys
import time

import numpy

from twisted.internet.defer import Deferred
from twisted.internet.task import react

from txrdma.btl.connections import connect, listen
from txrdma.messages.protocol import MessageProtocol

BLOCK = 1  # the tag of blocks, which come in order
WARMING = 2


class Neighbour(MessageProtocol):
    """The rank before or after this one; a factory of itself."""

    def __init__(self):
        self.blocks, self.waiting, self.made, self.lost = [], None, Deferred(), Deferred()

    def buildProtocol(self, peer):
        return self

    def connectionMade(self):
        self.transport.setHandler(BLOCK, self.blockCame, inOrder=True)
        self.made.callback(None)

    def connectionLost(self, reason):
        self.lost.callback(None)

    def blockCame(self, data):
        self.blocks.append(numpy.frombuffer(data).copy())
        waiting, self.waiting = self.waiting, None
        if waiting is not None:
            waiting.callback(None)

    async def block(self):
        if not self.blocks:
            self.waiting = Deferred()
            await self.waiting
        return self.blocks.pop(0)


async def allreduce(array, rank, ranks, before, behind):
    """Sum an array over all ranks, in place."""
    blocks = numpy.array_split(array, ranks)
    for step in range(2 * (ranks - 1)):
        behind.transport.post(BLOCK, blocks[(rank - step) % ranks].tobytes())
        mine = blocks[(rank - step - 1) % ranks]
        if step < ranks - 1:
            mine += await before.block()
        else:
            mine[:] = await before.block()


def share(rank, elements):
    """Return the array of a rank, which is the same in every run."""
    return numpy.random.default_rng(rank).integers(0, 1000, elements).astype(numpy.float64)


async def play(reactor, rank, ranks, elements, rounds):
    """Run a rank; the parent process passes the port of each rank to the previous one."""
    before, behind = Neighbour(), Neighbour()
    port = await listen(reactor, 0, before, "127.0.0.1")
    print(port.getHost().port, flush=True)
    await connect(reactor, "127.0.0.1", int(sys.stdin.readline()), behind)
    await before.made
    times = []
    for _ in range(rounds + WARMING):
        array = share(rank, elements)
        began = time.perf_counter()
        await allreduce(array, rank, ranks, before, behind)
        times.append(time.perf_counter() - began)
    isRight = numpy.array_equal(array, sum(share(each, elements) for each in range(ranks)))
    behind.transport.loseConnection()
    await behind.lost
    await before.lost
    await port.stopListening()
    print(isRight, sorted(times[WARMING:])[rounds // 2], flush=True)


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


def main():
    parser = argparse.ArgumentParser(description="Ring all-reduce by the byte transfer layer.")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--elements", type=int, default=250_000, help="of 8 bytes")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rank", type=int, help="used between the processes")
    wanted = parser.parse_args()
    if wanted.rank is not None:
        arguments = (wanted.rank, wanted.ranks, wanted.elements, wanted.rounds)
        react(lambda reactor: Deferred.fromCoroutine(play(reactor, *arguments)))
        return
    processes = [
        subprocess.Popen([sys.executable, *sys.argv, "--rank", str(rank)],
                         stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for rank in range(wanted.ranks)
    ]  # fmt: skip
    ports = [process.stdout.readline() for process in processes]
    for rank, process in enumerate(processes):
        process.stdin.write(ports[(rank + 1) % wanted.ranks])
        process.stdin.flush()
    answers = [process.communicate()[0].split() for process in processes]
    if any(answer[0] != "True" for answer in answers):
        sys.exit("the sum is wrong")
    seconds = max(float(answer[1]) for answer in answers)
    print(f"{wanted.ranks} ranks, {wanted.elements} elements: as NumPy has it, {1000 * seconds:.1f} ms")
    beside = byMPI(wanted.ranks, wanted.elements, wanted.rounds)
    print("mpi4py is not installed" if beside is None else f"mpi4py: {1000 * beside:.1f} ms")


if __name__ == "__main__":
    main()
