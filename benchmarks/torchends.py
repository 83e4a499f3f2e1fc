"""
Run one process of C{torch.distributed}, for a measurement of a backend.

C{txrdma btl-run -n 2 python -m benchmarks.torchends ORDERS} starts them, with C{backend} in the orders.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from benchmarks.orders import Orders, sendMessage

WARMING = 10
"""Operations that are not measured."""


def allreduce(orders: Orders) -> Callable[[], object]:
    """Return a function that reduces a tensor in place."""
    import torch

    tensor = torch.ones(max(orders["size"] // 4, 1))
    return lambda: torch.distributed.all_reduce(tensor, torch.distributed.ReduceOp.MAX)


def training(orders: Orders) -> Callable[[], object]:
    """Return a function that trains a model of 1.3 million parameters for one step."""
    import torch
    from torch import nn

    layers = [nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)]
    model = nn.parallel.DistributedDataParallel(nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = torch.randn(32, 256)

    def step() -> None:
        optimizer.zero_grad()
        model(data).square().mean().backward()
        optimizer.step()

    return step


def main(orders: Orders) -> None:
    import torch
    import torch.distributed as dist

    import txrdma.btl.torch  # noqa: F401  # registers the backend

    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[int(os.environ["RANK"]) % len(cores)]})  # also of threads that start now
    torch.set_num_threads(1)
    dist.init_process_group(orders["backend"])
    scenarios: dict[str, Any] = {"allreduce": allreduce, "training": training}
    run, count = scenarios[orders["scenario"]](orders), orders["count"]
    for left in range(count + WARMING, 0, -1):
        if left == count:
            dist.barrier()
            begun = time.perf_counter()
        run()
    seconds = time.perf_counter() - begun
    dist.destroy_process_group()
    if os.environ["RANK"] == "0":
        sendMessage({"value": seconds / count, "mode": f"{orders['backend']} of torch.distributed"})


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
