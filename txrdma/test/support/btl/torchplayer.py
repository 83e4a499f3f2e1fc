"""
A process of C{torch.distributed} for tests: C{txrdma btl-run -n 3 .../torchplayer.py ROLE}.

It compares the backend C{btl} with gloo, in the same processes.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ReduceOp

import txrdma.btl.torch  # noqa: F401  # registers the backend

COUNTS = (0, 1, 7, 3000, 300_000)
"""Numbers of elements: within a packet, in one step of shared memory, in several."""


def tensors(count: int, seed: int) -> list[Tensor]:
    """Return a tensor of each type that gloo reduces; those of floating point are small integers."""
    torch.manual_seed(100 * dist.get_rank() + seed)
    values = torch.randint(-4, 5, (count,))
    kinds = (
        torch.float32,
        torch.float64,
        torch.float16,
        torch.bfloat16,
        torch.int64,
        torch.int32,
        torch.int8,
    )
    return [values.to(kind) for kind in kinds]


def compare(operation: Callable[..., list[Tensor]], other: Any, tensor: Tensor, *arguments: Any) -> None:
    """Run an operation with both backends; its tensors must have the same bits."""
    found, expected = operation(tensor, None, *arguments), operation(tensor, other, *arguments)
    for one, two in zip(found, expected, strict=True):
        assert one.dtype is two.dtype and torch.equal(one, two), (operation, one, two)


def collectives(gloo: Any) -> None:
    """Compare all operations with random tensors."""
    rank, size = dist.get_rank(), dist.get_world_size()
    for count in COUNTS:
        for number, tensor in enumerate(tensors(count, count)):
            compare(broadcast, gloo, tensor, number % size)
            compare(reduced, gloo, tensor, number % size)
            for operation in (ReduceOp.SUM, ReduceOp.PRODUCT, ReduceOp.MIN, ReduceOp.MAX):
                compare(allreduce, gloo, tensor, operation)
            if count:
                compare(gathered, gloo, tensor, number % size)
                compare(scattered, gloo, tensor, number % size)
                compare(exchanged, gloo, tensor)
                compare(ring, gloo, tensor, number)
    wide = tensors(12, 1)[0].reshape(3, 4).t()  # not contiguous
    assert not wide.is_contiguous()
    compare(allreduce, gloo, wide, ReduceOp.MAX)
    compare(broadcast, gloo, wide, 1)
    compare(gathered, gloo, wide, 0)
    for operation in (ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR):
        compare(allreduce, gloo, tensors(5, 2)[4], operation)
    mean = torch.tensor([rank + 1.0])
    dist.all_reduce(mean, ReduceOp.AVG)
    assert mean.item() == (size + 1) / 2
    whole, part = torch.tensor([rank - 2]), torch.zeros(1, dtype=torch.int64)
    dist.reduce_scatter(part, [whole] * size, ReduceOp.AVG)
    dist.all_reduce(whole, ReduceOp.AVG)
    assert whole.item() == part.item() == -1  # of -2, -1 and 0
    negative = torch.tensor([1 + 2j]).conj().imag  # stores 2, and a flag for its negation
    assert negative.is_neg()
    dist.all_reduce(negative)
    assert negative.item() == -2 * size
    for short in (torch.arange(6.0).reshape(3, 2)[:1, 1], torch.zeros(0, 2)[:, 1]):
        assert short.is_contiguous() and short.stride() == (2,)
        compare(broadcast, gloo, short, 1)
        compare(gathered, gloo, short, 0)
    compare(coalesced, gloo, tensors(8 * size, 3)[0])
    single = torch.tensor(float(rank))
    dist.all_reduce(single)
    assert single.item() == sum(range(size))
    objects: list[Any] = [None] * size
    dist.all_gather_object(objects, {"rank": rank})
    assert objects == [{"rank": each} for each in range(size)]


def broadcast(tensor: Tensor, group: Any, root: int) -> list[Tensor]:
    copy = tensor.clone()
    dist.broadcast(copy, root, group=group)
    return [copy]


def allreduce(tensor: Tensor, group: Any, operation: Any) -> list[Tensor]:
    copy = tensor.clone()
    dist.all_reduce(copy, operation, group=group)
    return [copy]


def reduced(tensor: Tensor, group: Any, root: int) -> list[Tensor]:
    copy = tensor.clone()
    dist.reduce(copy, root, group=group)
    return [copy] if dist.get_rank() == root else []


def gathered(tensor: Tensor, group: Any, root: int) -> list[Tensor]:
    size = dist.get_world_size()
    found, every = ([torch.zeros_like(tensor) for _ in range(size)] for _ in range(2))
    dist.gather(tensor, found if dist.get_rank() == root else None, root, group=group)
    dist.all_gather(every, tensor, group=group)
    single = torch.zeros((size * tensor.numel(),), dtype=tensor.dtype)
    dist.all_gather_into_tensor(single, tensor.reshape(-1), group=group)
    return [*found, *every, single]


def coalesced(tensor: Tensor, group: Any) -> list[Tensor]:
    """Run pairs of operations that are started together."""
    size = dist.get_world_size()
    lists = [[torch.zeros_like(tensor) for _ in range(2)] for _ in range(size)]
    dist.all_gather_coalesced(lists, [tensor, -tensor], group=group)
    whole = [torch.zeros(size * tensor.numel()) for _ in range(2)]
    with dist._coalescing_manager(group):
        dist.all_gather_into_tensor(whole[0], tensor, group=group)
        dist.all_gather_into_tensor(whole[1], -tensor, group=group)
    parts = [torch.zeros(tensor.numel() // size) for _ in range(2)]
    with dist._coalescing_manager(group):
        dist.reduce_scatter_tensor(parts[0], tensor, group=group)
        dist.reduce_scatter_tensor(parts[1], -tensor, group=group)
    return [*sum(lists, []), *whole, *parts]


def scattered(tensor: Tensor, group: Any, root: int) -> list[Tensor]:
    size = dist.get_world_size()
    items = [tensor + number for number in range(size)]
    one, two, three = (torch.zeros_like(tensor) for _ in range(3))
    dist.scatter(one, items if dist.get_rank() == root else None, root, group=group)
    dist.reduce_scatter(two, items, group=group)
    dist.reduce_scatter_tensor(three, torch.cat(items), ReduceOp.MAX, group=group)
    return [one, two, three]


def exchanged(tensor: Tensor, group: Any) -> list[Tensor]:
    rank, size = dist.get_rank(), dist.get_world_size()
    same = torch.zeros(size * tensor.numel(), dtype=tensor.dtype)
    dist.all_to_all_single(same, tensor.repeat(size), group=group)
    rows = [(rank + other) % 3 for other in range(size)]  # each member receives as many as it sends
    some = torch.zeros((sum(rows), 2), dtype=tensor.dtype)
    dist.all_to_all_single(some, tensor[:1].repeat(sum(rows), 2), rows, rows, group=group)
    items = [tensor * number for number in range(size)]
    lists = [torch.zeros_like(tensor) for _ in range(size)]
    if group is None:
        dist.all_to_all(lists, items)
    else:  # gloo has no all_to_all of lists
        flat = torch.cat(lists)
        dist.all_to_all_single(flat, torch.cat(items), group=group)
        lists = list(flat.chunk(size))
    return [same, some, *lists]


def ring(tensor: Tensor, group: Any, tag: int) -> list[Tensor]:
    """Send to the next, and receive from the previous member."""
    rank, size = dist.get_rank(), dist.get_world_size()
    into = torch.zeros_like(tensor)
    sent = dist.isend(tensor, (rank + 1) % size, group=group, tag=tag)
    dist.recv(into, (rank - 1) % size, group=group, tag=tag)
    sent.wait()
    return [into]


def works() -> None:
    """Asynchronous operations end in order; invalid calls are refused, and the group continues."""
    found = [torch.full((100,), float(dist.get_rank())) for _ in range(50)]
    works = [dist.all_reduce(each, async_op=True) for each in found]
    works[-1].wait()
    assert all(each.is_completed() and each.is_success() and each.exception() is None for each in works)
    total = sum(range(dist.get_world_size()))
    assert all(each.eq(total).all() for each in found)
    future = dist.all_reduce(found[0], async_op=True).get_future()
    assert future.wait()[0] is found[0]
    refused(ValueError, "dense", lambda: dist.all_reduce(torch.eye(2).to_sparse()))
    refused(TypeError, "Float8", lambda: dist.all_reduce(torch.zeros(2).to(torch.float8_e5m2)))
    refused(
        ValueError, "too long", lambda: dist.all_gather([], torch.empty((64 << 20) + 1, dtype=torch.uint8))
    )
    refused(NotImplementedError, "rank of the sender", lambda: dist.recv(torch.zeros(1)))
    for tag in (-1, 65277):  # the largest tags belong to the group
        for call in (dist.isend, dist.irecv):
            refused(ValueError, "from 0 to 65276", partial(call, torch.ones(1), 0, tag=tag))
    dist.barrier()


def callbacks() -> None:
    """The callback of a future can start an operation, but not wait for it."""
    rank, size = dist.get_rank(), dist.get_world_size()
    previous, following = (rank - 1) % size, (rank + 1) % size
    into = [torch.zeros(1), torch.zeros(1)]

    def receive(tag: int) -> Any:
        return dist.irecv(into[tag], previous, tag=tag)

    future = receive(0).get_future()
    chained = future.then(lambda _: receive(1).wait())
    destroyed = future.then(lambda _: dist.destroy_process_group())
    dist.barrier()
    dist.send(torch.ones(1), following, tag=0)
    refused(RuntimeError, "callback of a future cannot wait for recv", chained.wait)
    refused(RuntimeError, "callback of a future cannot wait for the end", destroyed.wait)
    dist.barrier()
    dist.send(torch.ones(1), following, tag=1)
    dist.barrier()


def refused(kind: type[Exception], text: str, call: Callable[[], object]) -> str:
    """Check that a call raises an exception, and return its text."""
    try:
        call()
    except kind as error:
        assert text in str(error), error
        return str(error)
    raise AssertionError(f"no {kind}")


def subgroups() -> None:
    """Groups of some members work beside each other, and can be destroyed alone."""
    rank = dist.get_rank()
    pairs = [dist.new_group([0, 1]), dist.new_group([1, 2])]
    for group, members in zip(pairs, ((0, 1), (1, 2)), strict=True):
        if rank in members:
            tensor = torch.tensor([rank])
            dist.all_reduce(tensor, group=group)
            assert tensor.item() == sum(members)
            dist.destroy_process_group(group)
    dist.barrier()


def train(group: Any) -> list[Tensor]:
    """Train a small model, and return its weights."""
    torch.manual_seed(1)
    layers = [torch.nn.Linear(20, 300), torch.nn.ReLU(), torch.nn.Linear(300, 3)]
    model = torch.nn.parallel.DistributedDataParallel(
        torch.nn.Sequential(*layers), process_group=group, bucket_cap_mb=0.01
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    torch.manual_seed(10 + dist.get_rank())
    for _ in range(5):
        optimizer.zero_grad()
        data = torch.randn(16, 20)
        torch.nn.functional.mse_loss(model(data), data[:, :3]).backward()
        optimizer.step()
    return [each.detach().clone() for each in model.parameters()]


def killed() -> None:
    """A member ends while the others wait for it."""
    rank = dist.get_rank()
    if rank == 1:
        dist.barrier()
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()
    pending = dist.all_reduce(torch.ones(3), async_op=True)
    receive = dist.irecv(torch.ones(3), 1)
    refused(dist.DistBackendError, "rank 1", lambda: dist.all_reduce(torch.ones(3)))
    refused(RuntimeError, "rank 1", pending.get_future().wait)
    assert pending.is_completed() and not pending.is_success()
    refused(dist.DistBackendError, "ended", receive.wait)
    refused(dist.DistBackendError, "rank 1", dist.barrier)
    os.write(1, b"noticed\n")


def late() -> None:
    """A member does not call an operation in time: the group fails, and other groups do not."""
    group = dist.new_group()
    if dist.get_rank():
        options = dist.AllreduceOptions()
        options.timeout = timedelta(seconds=0.1)
        work = group.allreduce([torch.ones(1)], options)
        text = refused(dist.DistBackendError, "allreduce", work.wait)
        assert "has not ended in 0.1 seconds" in text or "has cancelled allreduce" in text, text
        refused(dist.DistBackendError, "allreduce", lambda: dist.barrier(group=group))
    dist.barrier()


def main(role: str) -> None:
    dist.init_process_group("btl")
    if role == "operations":
        collectives(dist.new_group(backend="gloo"))
        works()
        callbacks()
        subgroups()
        late()
    elif role == "training":
        found, expected = train(None), train(dist.new_group(backend="gloo"))
        assert all(torch.equal(one, two) for one, two in zip(found, expected, strict=True))
    elif role == "killed":
        killed()
    descriptors = len(os.listdir("/proc/self/fd"))
    dist.destroy_process_group()
    assert len(os.listdir("/proc/self/fd")) < descriptors
    names = [each.name for each in threading.enumerate()]
    assert "txrdma reactor" not in names, names
    os.write(1, b"ended\n")  # in one call: print may write the line break later


if __name__ == "__main__":
    main(sys.argv[1])
