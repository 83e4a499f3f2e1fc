"""
Play many simulations of the byte transfer layer over a bad network.

C{python -m txrdma.testing.btl.simulate --seeds 10000} plays so many; see L{txrdma.testing.verbs.simulate}.
"""

from __future__ import annotations

import time
from collections import Counter

from txrdma.testing.btl.scenario import simulate
from txrdma.testing.verbs.simulate import attempts, main


def run(first: int, count: int, quiet: bool = False) -> int:
    """
    Play simulations of modules by seeds in a row.

    @return: how many failed.
    """
    started = time.monotonic()
    failed = completed = told = packets = dropped = deaths = 0
    counters: Counter[str] = Counter()
    for played in attempts(simulate, range(first, first + count), "txrdma.testing.btl.simulate", quiet):
        if played is None:
            failed += 1
            continue
        completed += played.completed
        told += played.failed
        packets += played.packets
        dropped += played.dropped
        deaths += played.deaths
        counters.update(played.counters)
    print(
        f"{count} simulations in {time.monotonic() - started:.1f} s: {completed} messages arrived, of {told} "
        f"others their senders know; {packets} packets, {dropped} of them lost; {deaths} deaths; "
        f"{failed} failed"
    )
    print(f"{counters['num_pack_sends']} packets of several messages each")
    print(f"{counters['num_rdma_sends']} pieces by landings, {counters['num_rdma_misses']} that found none")
    resends = ("resends", "timeout_retrans", "fast_retrans", "spurious_resends", "dup_recvs", "refused_sends")
    print(", ".join(f"{counters['num_' + each]} {each}" for each in resends))
    return failed


if __name__ == "__main__":
    main(run)
