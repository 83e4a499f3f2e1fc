"""Cases that measure the byte transfer layer beside other message libraries."""

from __future__ import annotations

from dataclasses import replace
from signal import SIGKILL
from typing import Final

from benchmarks.cases import bulk as reliableBulk
from benchmarks.measuring import Case, DASK_MODULE, GROUP_MODULE, TORCH_MODULE
from benchmarks.wires import PAYLOAD, THERE

MIB = 1 << 20

FEW: Final = 3
"""Maximum number of rounds of slow cases."""

BTL = {"module": "benchmarks.btlends"}
BTL_UDP = {**BTL, "route": "rocev2"}
ZMQ = {"module": "benchmarks.peer_zmq", "isTCP": True}
ENET = {"module": "benchmarks.peer_enet"}
MPI = {"module": "benchmarks.peer_mpi"}
MPI_TCP = {**MPI, "isTCP": True}

LOSSY_TCP = {
    "listen": f"tcp:0:interface={THERE}",
    "connect": f"tcp:{THERE}:{{port}}",
}
QUIC = {"module": "benchmarks.peer_quic"}
"""QUIC over a wire with packet loss."""


def messages(quick: bool) -> list[Case]:
    """Return the cases about messages of the byte transfer layer."""
    return [
        *_bursts(quick),
        *_roundTrips(quick),
        *_batches(quick),
        *_bulk(quick),
        *_senders(quick),
        *_groups(quick),
        *_dask(quick),
        *_torch(quick),
        *_idle(quick),
    ]


def _burst(quick: bool) -> Case:
    """Return the case of short messages, of which others are variants."""
    return Case(
        "btl-messages",
        "64-byte messages in bursts, over UDP; pyzmq over tcp",
        "messages",
        "/s",
        tested=BTL_UDP,
        reference=ZMQ,
        orders={"count": 20_000 if quick else 100_000, "write": 64},
        atLeast=1.0,
        mode="btl UDP",
        needs="zmq",
    )


def _bursts(quick: bool) -> list[Case]:
    """Return the cases with short messages, one by one."""
    burst = _burst(quick)
    cpu = replace(
        burst,
        name="btl-messages-cpu",
        title="CPU time of the sender for a 64-byte message; pyzmq over tcp",
        unit="us",
        figure="cpu",
        atLeast=None,
    )
    others = tuple(
        replace(
            burst, name=f"btl-messages-{name}", title=title, reference=reference, needs=needs, atLeast=least
        )
        for name, title, reference, needs, least in (
            ("mpi", "64-byte messages in bursts, over UDP; mpi4py over TCP", MPI_TCP, "mpi4py", 4.0),
            ("enet", "64-byte messages in bursts, over UDP; pyenet, reliable packets", ENET, "enet", 1.0),
        )
    )
    sharedBurst = replace(
        burst,
        name="btl-messages-mpi-shared",
        title="64-byte messages in bursts, over shared memory; mpi4py over shared memory",
        tested=BTL,
        reference=MPI,
        needs="mpi4py",
        atLeast=0.8,
        mode="btl shared memory",
    )
    return [replace(burst, also=(cpu, *others, sharedBurst))]


def _roundTrips(quick: bool) -> list[Case]:
    """Return the cases with messages and calls that are answered."""
    ping = Case(
        "btl-roundtrip",
        "64-byte round trip; pyzmq over tcp",
        "roundTrip",
        "us",
        tested=BTL,
        reference=ZMQ,
        orders={"count": 1_000 if quick else 10_000, "size": 64},
        atMost=1.0,
        mode="btl shared memory",
        needs="zmq",
    )
    pingUDP = replace(
        ping,
        name="btl-roundtrip-udp",
        title="64-byte round trip, over UDP; pyzmq over tcp",
        tested=BTL_UDP,
        atMost=None,
        mode="btl UDP",
    )
    polling = replace(
        ping,
        name="btl-roundtrip-polling",
        title="64-byte round trip with the polling reactor; pyzmq over tcp",
        tested={**BTL, "reactor": "txrdma"},
        atMost=0.3,
    )
    call = replace(
        ping,
        name="btl-call",
        title="64-byte call of a function and its answer; pyzmq's REQ and REP over tcp",
        tested={**BTL, "isCall": True},
        reference={**ZMQ, "isCall": True},
        atMost=0.5,
        also=(),
    )
    callUDP = replace(
        call,
        name="btl-call-udp",
        title="64-byte call of a function and its answer, over UDP; pyzmq's REQ and REP over tcp",
        tested={**BTL_UDP, "isCall": True},
        atMost=None,
        mode="btl UDP",
    )
    return [replace(ping, also=(polling, pingUDP)), replace(call, also=(callUDP,))]


def _batches(quick: bool) -> list[Case]:
    """Return the cases with short messages in batches."""
    batch = replace(
        _burst(quick),
        name="btl-batches",
        title="64-byte messages in batches of 256, over UDP; pyzmq over tcp, one by one",
        tested={**BTL_UDP, "isBatch": True},
        atLeast=1.5,
    )
    batchENet = replace(
        batch,
        name="btl-batches-enet",
        title="64-byte messages in batches of 256, over UDP; pyenet, reliable packets",
        reference=ENET,
        needs="enet",
    )
    return [replace(batch, also=(batchENet,))]


def _bulk(quick: bool) -> list[Case]:
    bulk = Case(
        "btl-bulk",
        "messages of 1 MiB, over UDP; pyzmq over tcp",
        "throughput",
        "MB/s",
        tested=BTL_UDP,
        reference=ZMQ,
        orders={"bytes": (32 if quick else 256) * MIB, "write": MIB},
        mode="btl UDP",
        needs="zmq",
        atLeast=0.5,
    )
    shared = replace(
        bulk,
        name="btl-bulk-mpi-shared",
        title="messages of 1 MiB, over shared memory; mpi4py over shared memory",
        tested=BTL,
        reference=MPI,
        needs="mpi4py",
        mode="btl shared memory",
        atLeast=1.2,
    )
    reliable = replace(
        bulk,
        name="btl-bulk-reliable",
        title="messages of 1 MiB, over UDP; RDMA_WRITE of the software device over UDP",
        reference={**reliableBulk("RDMA_WRITE", MIB), "scenario": "bulk"},
        needs="zlib_ng",
        atLeast=0.9,
    )
    striped = replace(
        bulk,
        name="btl-bulk-striped",
        title="messages of 1 MiB, by two modules; by one module",
        tested={**BTL_UDP, "modules": 2},
        reference=BTL_UDP,
        needs=None,
        atLeast=None,
    )
    return [replace(bulk, also=(shared, reliable, striped))]


def _idle(quick: bool) -> list[Case]:
    """Return the case with the memory of idle peers."""
    opened = 100 if quick else 10_000
    connection = Case(
        "btl-memory",
        f"all memory of one end of an idle connection over UDP, of {opened:,}",
        "many",
        "KiB",
        tested=BTL_UDP,
        reference=None,
        orders={"connections": opened, "stays": True},
        mode="btl UDP",
        mostValue=32.0,
        mostRounds=1,
    )
    peer = replace(
        connection,
        name="btl-memory-peer",
        title=f"memory of an idle peer in its module, of {opened:,}",
        figure="peer",
        mostValue=4.0,
    )
    return [replace(connection, also=(peer,))]


def _dask(quick: bool) -> list[Case]:
    small = Case(
        "btl-dask-tasks",
        "small tasks of Dask on two workers; over tcp://",
        "daskTasks",
        "/s",
        tested={"module": DASK_MODULE, "protocol": "btl"},
        reference={"module": DASK_MODULE, "protocol": "tcp"},
        orders={"count": 500 if quick else 5000},
        atLeast=1.3,
        mode="btl",
        needs="distributed",
        mostRounds=FEW,
    )
    shuffle = replace(
        small,
        name="btl-dask-shuffle",
        title="two workers of Dask exchange arrays; over tcp://",
        scenario="daskShuffle",
        unit="MB/s",
        orders={"bytes": (64 if quick else 512) * MIB},
    )
    return [small, shuffle]


def _groups(quick: bool) -> list[Case]:
    found = []
    for name, size, title, count, most in (
        ("8", 8, "8 bytes", 2000, 1.0),
        ("4k", 4 << 10, "4 KiB", 2000, 1.0),
        ("4m", 4 * MIB, "4 MiB", 50, 1.2),
    ):
        case = Case(
            f"btl-allreduce-{name}",
            f"allreduce of {title} among 4 processes; mpi4py",
            "allreduce",
            "us",
            tested={"module": GROUP_MODULE},
            reference=MPI,
            orders={"size": size, "count": count // 10 if quick else count, "ranks": 4},
            mode="btl shared memory",
            needs="mpi4py",
            atMost=most,
            mostRounds=FEW,
        )
        fewer = {"count": case.orders["count"] // 4}
        overUDP = replace(
            case,
            name=f"{case.name}-udp",
            title=f"allreduce of {title} among 4 processes, over UDP; mpi4py over TCP",
            tested={"module": GROUP_MODULE, "route": "rocev2", **fewer},
            reference={**MPI_TCP, **fewer},
            mode="btl UDP",
            atMost=None,
        )
        found.append(replace(case, also=(overUDP,)))
    death = Case(
        "btl-group-death",
        "time until pending operations fail when one of 4 processes is killed",
        "death",
        "ms",
        tested={"module": GROUP_MODULE},
        reference=None,
        orders={"ranks": 4, "status": 128 + SIGKILL},
        mode="btl shared memory",
        needs="numpy",
        mostValue=100.0,
        mostRounds=FEW,
    )
    return [*found, death]


def _torch(quick: bool) -> list[Case]:
    found = []
    for name, size, title, count in (
        ("8", 8, "allreduce of 8 bytes", 2000),
        ("4k", 4 << 10, "allreduce of 4 KiB", 2000),
        ("4m", 4 * MIB, "allreduce of 4 MiB", 50),
        ("training", 0, "step of DistributedDataParallel with 1.3 million parameters", 50),
    ):
        case = Case(
            f"btl-torch-{name}",
            f"{title} between 2 processes of torch; by gloo",
            "allreduce" if size else "training",
            "us",
            tested={"module": TORCH_MODULE, "backend": "btl"},
            reference={"module": TORCH_MODULE, "backend": "gloo"},
            orders={"size": size, "count": count // 10 if quick else count},
            mode="btl of torch.distributed",
            needs="torch",
            mostRounds=FEW,
        )
        found.append(case)
    return found


def _senders(quick: bool) -> list[Case]:
    crowd = Case(
        "btl-senders",
        "16 senders to one receiver, messages of 16 KiB, in total; one sender",
        "senders",
        "MB/s",
        tested={**BTL, "senders": 16},
        reference={**BTL, "senders": 1},
        orders={"write": 16 << 10, "seconds": 0.5 if quick else 2.0},
        atLeast=0.8,
        mode="btl",
        mostRounds=FEW,
    )
    jain = replace(
        crowd,
        name="btl-senders-jain",
        title="16 senders to one receiver: Jain's index of fairness, 1 if all have the same",
        unit="index",
        reference=None,
        figure="jain",
        atLeast=None,
        leastValue=0.95,
    )
    return [replace(crowd, also=(jain,))]


def losses(quick: bool) -> list[Case]:
    """Return the cases with packet loss."""
    found = []
    for percent, size in ((1, 16), (5, 4)):
        size //= 4 if quick else 1
        goodput = Case(
            f"btl-loss-{percent}-tcp",
            f"goodput at {percent} % loss; TCP (CUBIC) with {PAYLOAD} bytes in a segment",
            "throughput",
            "MB/s",
            tested={**BTL, "bytes": size * MIB},
            reference={**LOSSY_TCP, "bytes": size * MIB},
            orders={"loss": percent / 100, "write": 64 << 10},
            atLeast=0.25 if percent == 1 else 2.0,
            mode="btl",
            mostRounds=FEW,
        )
        quic = replace(
            goodput,
            name=f"btl-loss-{percent}-quic",
            title=f"goodput at {percent} % loss; aioquic with 1,200 bytes in a datagram",
            reference={**QUIC, "bytes": size * MIB // 4},
            needs="aioquic",
            atLeast=15.0 if percent == 1 else None,
        )
        resent = replace(
            goodput,
            name=f"btl-loss-{percent}-resent",
            title=f"segments sent again for each that was lost, at {percent} % loss; TCP (CUBIC)",
            unit="segments",
            figure="resent",
            atLeast=None,
            mostValue=1.5 if percent == 1 else 1.8,
        )
        found.append(replace(goodput, also=(quic, resent)))
    return found
