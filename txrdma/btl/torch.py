"""
A backend of C{torch.distributed} for tensors in the memory of hosts: importing this module registers C{btl}.

Each process group is a L{Group}, whose members meet by the store of C{torch.distributed}. Groups run on a
reactor in a separate thread, see L{ReactorThread}. Tensors share their memory with the arrays of NumPy that
groups exchange.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import reduce
from threading import Event, Lock
from typing import Any, Final

try:
    import numpy
    import torch
    from torch import Tensor
    from torch.distributed import Backend, DistBackendError, ProcessGroup, ReduceOp, Work
except ImportError as error:
    raise ImportError("txrdma.btl.torch needs torch and numpy: pip install 'txrdma[torch]'") from error

from twisted.internet.defer import Deferred, gatherResults, maybeDeferred, TimeoutError
from twisted.python.failure import Failure

from txrdma.btl.core.assembly import LONGEST
from txrdma.btl.groups.group import Group
from txrdma.btl.groups.members import WAKE
from txrdma.btl.groups.rendezvous import Rendezvous
from txrdma.btl.groups.terms import GroupTerms
from txrdma.btl.reactorthread import ReactorThread
from txrdma.btl.transport import BTLMessageTransport
from txrdma.error import RDMAError

INTERFACE: Final = "TXRDMA_GROUP_INTERFACE"
"""Environment variable: the IPv4 address at which other processes reach this one."""

DEVICE: Final = "TXRDMA_GROUP_DEVICE"
"""Environment variable: the RDMA device, see L{txrdma.btl.ends.DeviceSpecs}."""

POLL_SECONDS: Final = 1e-3
"""
Seconds for which a member in shared memory polls. After a sleep it takes two changes of threads to continue.
"""

CLOSE_SECONDS: Final = 10.0
"""Seconds in which the connections of a group must end when it is destroyed."""

_OPERATIONS: Final[dict[Any, tuple[Any, Any]]] = {  # for groups, and of two arrays
    ReduceOp.SUM: ("sum", numpy.add),
    ReduceOp.AVG: ("sum", numpy.add),
    ReduceOp.PRODUCT: ("prod", numpy.multiply),
    ReduceOp.MIN: ("min", numpy.minimum),
    ReduceOp.MAX: ("max", numpy.maximum),
    ReduceOp.BAND: (numpy.bitwise_and, numpy.bitwise_and),
    ReduceOp.BOR: (numpy.bitwise_or, numpy.bitwise_or),
    ReduceOp.BXOR: (numpy.bitwise_xor, numpy.bitwise_xor),
}


class BTLWork(Work):
    """The progress and result of one operation of a process group. Any thread can call all methods."""

    def __init__(self, name: str, tensors: Any, thread: ReactorThread) -> None:
        """
        @param tensors: the result.
        @param thread: the thread of the reactor, on which the operation depends.
        """
        super().__init__()
        self._name, self._tensors, self._thread = name, tensors, thread
        self._error: Exception | None = None
        self._done, self._lock = Event(), Lock()
        self._futures: list[Any] = []

    def complete(self, result: Any) -> None:
        """Process the result or the failure of the operation."""
        if isinstance(result, Failure):
            error = result.value
            if isinstance(error, RDMAError):
                error = DistBackendError(f"btl: {self._name} failed: {error}")
            self._error = error if isinstance(error, Exception) else DistBackendError(repr(error))
        with self._lock:
            self._done.set()
        for each in self._futures:
            each.set_result(None)

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """
        Wait for the end of the operation.

        @param timeout: time after which this raises an exception; 0 for the timeout of the group.
        @raise DistBackendError: the operation has failed, or has not ended in time; or the callback of a
            future waits for it, and would block it.
        """
        if not self._done.is_set() and self._thread.isHere():
            raise DistBackendError(f"btl: the callback of a future cannot wait for {self._name}")
        if not self._done.wait(timeout.total_seconds() or None):
            raise DistBackendError(f"btl: {self._name} has not ended in {timeout.total_seconds():g} seconds")
        if self._error is not None:
            raise self._error
        return True

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        return self._done.is_set()

    def is_success(self) -> bool:
        return self._done.is_set() and self._error is None

    def exception(self) -> Exception | None:
        return self._error

    def result(self) -> Any:
        self.wait()
        return self._tensors

    def get_future(self) -> Any:
        """Return a future of torch with the tensors, or the error."""
        ended: Any = torch.futures.Future()
        with self._lock:
            hasEnded = self._done.is_set()
            if not hasEnded:
                self._futures.append(ended)
        if hasEnded:
            ended.set_result(None)
        return ended.then(lambda _: self.result())  # what it raises reaches callers in C++, too


class ProcessGroupBTL(ProcessGroup):
    """
    A process group whose operations are those of a L{Group}.

    Names and arguments of methods are those of C{torch.distributed}, which calls them.
    """

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta) -> None:
        """
        Join the group: all members have to call this at the same time.

        @param store: through which members exchange the address of their rendezvous.
        @param timeout: time in which all members must join, and each operation must end.
        @raise DistBackendError: not all members have joined in time.
        """
        super().__init__(rank, size)
        self._size, self._seconds = size, timeout.total_seconds()
        self._thread = thread = ReactorThread.acquire()
        try:
            self._group: Group | None = self._join(store, rank, timeout)
        except BaseException as error:
            thread.release()
            if isinstance(error, RDMAError):
                raise DistBackendError(f"btl: {error}") from error
            raise

    def _join(self, store: Any, rank: int, timeout: timedelta) -> Group:
        reactor, host = self._thread.reactor, _interface()
        rendezvous = None
        try:
            if rank == 0:
                rendezvous = Rendezvous(reactor, self._size, host)
                self._thread.call(rendezvous.listen)
                for each in range(self._size):
                    store.set(f"btl{each}", json.dumps(rendezvous.terms(each).environment()))
            store.wait([f"btl{rank}"], timeout)
            terms = GroupTerms.fromEnvironment(json.loads(store.get(f"btl{rank}")))
            device = os.environ.get(DEVICE)
            found: Group = self._thread.call(
                Group.join, reactor, terms, device, host, self._seconds, POLL_SECONDS
            )
        except BaseException:
            if rendezvous is not None:
                self._thread.call(rendezvous.close)
            raise
        if rendezvous is not None:
            self._thread.call(rendezvous.dissolve)
        return found

    def getBackendName(self) -> str:
        return "btl"

    def setGroupName(self, name: str) -> None:
        self._name = name

    def getGroupName(self) -> str:
        return self._name

    def setGroupDesc(self, text: str) -> None:
        self._description = text

    def getGroupDesc(self) -> str:
        return self._description

    def shutdown(self) -> None:
        """
        Leave the group: unfinished operations fail, and connections are closed.

        @raise DistBackendError: the callback of a future calls this, and would block the end.
        """
        if self._thread.isHere():
            raise DistBackendError("btl: the callback of a future cannot wait for the end of the group")
        group, self._group = self._group, None
        if group is not None:
            try:
                self._thread.call(lambda: group.close().addTimeout(CLOSE_SECONDS, self._thread.reactor))
            except TimeoutError:
                pass  # the others notice the end of this process
            finally:
                self._thread.release()

    abort = shutdown

    def _start(
        self, name: str, opts: Any, tensors: Any, operation: Callable[[Group], Deferred[Any]]
    ) -> BTLWork:
        """
        Start an operation of the group after those that were started before.

        @param opts: of C{torch.distributed}, or None.
        @param tensors: the result.
        """
        work, group = BTLWork(name, tensors, self._thread), self._group
        if group is None:
            raise DistBackendError("btl: the process group has been destroyed")
        given = -1.0 if opts is None else opts.timeout.total_seconds()
        seconds = given if given > 0 else self._seconds

        def timedOut(_: object, seconds: float) -> None:
            raise DistBackendError(f"btl: {name} has not ended in {seconds:g} seconds")

        def call() -> None:
            outcome = maybeDeferred(operation, group)
            if not outcome.called:
                outcome.addTimeout(seconds, self._thread.reactor, timedOut)
            outcome.addBoth(work.complete)

        self._thread.start(call, opts is None or not opts.asyncOp)
        return work

    def _mean(self, total: Tensor) -> Tensor:
        """Divide a sum by the number of members; integers are rounded towards zero, as by NCCL."""
        isWhole = not (total.is_floating_point() or total.is_complex())
        return total.div_(self._size, rounding_mode="trunc" if isWhole else None)

    # Operations

    def broadcast(self, tensors: Sequence[Tensor], opts: Any) -> Work:
        (tensor,) = tensors
        flat = _flat(tensor)

        def run(group: Group) -> Deferred[Any]:
            parts = [group.broadcast(each, opts.rootRank) for each in _pieces(_octets(flat))]
            return _all(parts).addCallback(lambda _: _restore(tensor, flat))

        return self._start("broadcast", opts, tensors, run)

    def allreduce(self, tensors: Sequence[Tensor], opts: Any) -> Work:
        operation, _function = _operation(opts)
        flats = [_elements(each) for each in tensors]
        isMean = opts.reduceOp == ReduceOp.AVG

        def restore(_: object) -> None:
            for tensor, flat in zip(tensors, flats, strict=True):
                _restore(tensor, self._mean(flat) if isMean else flat)

        def run(group: Group) -> Deferred[Any]:
            pieces = [each for flat in flats for each in _pieces(flat.numpy())]
            return _all([group.allreduce(each, operation, each) for each in pieces]).addCallback(restore)

        return self._start("allreduce", opts, tensors, run)

    allreduce_coalesced = allreduce

    def reduce(self, tensors: Sequence[Tensor], opts: Any) -> Work:
        (tensor,), (operation, _function), root = tensors, _operation(opts), opts.rootRank
        flat = _elements(tensor)

        def restore(found: Any) -> None:
            if found is not None:
                flat.numpy()[:] = found
                _restore(tensor, self._mean(flat) if opts.reduceOp == ReduceOp.AVG else flat)

        def run(group: Group) -> Deferred[Any]:
            return group.reduce(flat.numpy(), operation, root).addCallback(restore)

        return self._start("reduce", opts, tensors, run)

    def allgather(self, outputs: Sequence[Sequence[Tensor]], inputs: Sequence[Tensor], opts: Any) -> Work:
        ((tensor,), (into,)) = inputs, outputs
        mine = _item(tensor)
        return self._start(
            "allgather", opts, outputs, lambda group: group.allgather(mine).addCallback(_load, into)
        )

    def allgather_coalesced(
        self, outputs: Sequence[Sequence[Tensor]], inputs: Sequence[Tensor], opts: Any
    ) -> Work:
        items = [_item(each) for each in inputs]

        def run(group: Group) -> Deferred[Any]:
            pairs = zip(items, zip(*outputs, strict=True), strict=True)
            return _all([group.allgather(mine).addCallback(_load, into) for mine, into in pairs])

        return self._start("allgather", opts, outputs, run)

    def all_gather_single(self, output: Tensor, tensor: Tensor, opts: Any) -> Work:
        return self.all_gather_single_coalesced([output], [tensor], opts)

    def all_gather_single_coalesced(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Any
    ) -> Work:
        flats = [_flat(each) for each in outputs]
        items = [_item(each) for each in inputs]

        def restore(_: object) -> None:
            for output, flat in zip(outputs, flats, strict=True):
                _restore(output, flat)

        def run(group: Group) -> Deferred[Any]:
            pairs = zip(items, flats, strict=True)
            parts = [group.allgather(mine).addCallback(_load, flat.chunk(self._size)) for mine, flat in pairs]
            return _all(parts).addCallback(restore)

        return self._start("allgather", opts, outputs, run)

    _allgather_base = all_gather_single  # names in earlier versions of torch
    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def gather(self, outputs: Sequence[Sequence[Tensor]], inputs: Sequence[Tensor], opts: Any) -> Work:
        (tensor,), root = inputs, opts.rootRank
        mine, into = _item(tensor), outputs[0] if outputs else ()
        return self._start(
            "gather", opts, outputs, lambda group: group.gather(mine, root).addCallback(_load, into)
        )

    def scatter(self, outputs: Sequence[Tensor], inputs: Sequence[Sequence[Tensor]], opts: Any) -> Work:
        items = [_item(each) for each in inputs[0]] if inputs else None

        def run(group: Group) -> Deferred[Any]:
            return group.scatter(items, opts.rootRank).addCallback(lambda found: _load([found], outputs))

        return self._start("scatter", opts, outputs, run)

    def reduce_scatter_single(self, output: Tensor, tensor: Tensor, opts: Any) -> Work:
        return self.reduce_scatter_single_coalesced([output], [tensor], opts)

    def reduce_scatter_single_coalesced(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Any
    ) -> Work:
        return self.reduce_scatter(outputs, [_flat(each).chunk(self._size) for each in inputs], opts)

    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def reduce_scatter(
        self, outputs: Sequence[Tensor], inputs: Sequence[Sequence[Tensor]], opts: Any
    ) -> Work:
        """Send each member its part of the tensors of all, and reduce the parts received here."""
        _name, function = _operation(opts)
        items = [[_elements(each).numpy() for each in parts] for parts in inputs]

        def store(found: list[Any], output: Tensor) -> None:
            total = torch.from_numpy(reduce(lambda one, other: function(one, other, out=one), found))
            total = self._mean(total) if opts.reduceOp == ReduceOp.AVG else total
            output.detach().copy_(total.reshape(output.shape))

        def run(group: Group) -> Deferred[Any]:
            pairs = zip(items, outputs, strict=True)
            return _all([group.alltoall(mine).addCallback(store, output) for mine, output in pairs])

        return self._start("reduce_scatter", opts, outputs, run)

    def alltoall(self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Any) -> Work:
        items = [_item(each) for each in inputs]
        return self._start(
            "alltoall", opts, outputs, lambda group: group.alltoall(items).addCallback(_load, outputs)
        )

    def all_to_all_single(
        self, output: Tensor, tensor: Tensor, outputRows: list[int], inputRows: list[int], opts: Any
    ) -> Work:
        items, into = self._rows(tensor, inputRows), self._rows(output, outputRows)
        return self.alltoall(into, items, opts)

    alltoall_base = all_to_all_single

    def _rows(self, tensor: Tensor, counts: list[int]) -> Sequence[Tensor]:
        """Return rows of a tensor for each member."""
        if not counts and tensor.size(0) % self._size:
            raise ValueError(f"{tensor.size(0)} rows cannot be divided among {self._size} members")
        found: Sequence[Tensor] = tensor.split(counts or [tensor.size(0) // self._size] * self._size)
        return found

    def barrier(self, opts: Any) -> Work:
        return self._start("barrier", opts, [], lambda group: group.barrier())

    def send(self, tensors: Sequence[Tensor], rank: int, tag: int) -> Work:
        (tensor,) = tensors
        data = _octets(_flat(tensor))
        _checkTag(tag)

        def run(group: Group) -> Deferred[Any]:
            transport = group.transport(rank)
            return _all([transport.send(tag, each) for each in _pieces(data)])

        return self._start("send", None, tensors, run)

    def recv(self, tensors: Sequence[Tensor], rank: int, tag: int) -> Work:
        (tensor,) = tensors
        flat = _flat(tensor)
        _checkTag(tag)

        def run(group: Group) -> Deferred[Any]:
            transport = group.transport(rank)
            parts = [_receive(transport, tag, each) for each in _pieces(_octets(flat))]
            return _all(parts).addCallback(lambda _: _restore(tensor, flat))

        return self._start("recv", None, tensors, run)

    def recv_anysource(self, tensors: Sequence[Tensor], tag: int) -> Work:
        raise NotImplementedError("btl: recv needs the rank of the sender")


def _checkTag(tag: int) -> None:
    if not 0 <= tag < WAKE:
        raise ValueError(f"btl: a tag is a number from 0 to {WAKE - 1}, not {tag}")


def _receive(transport: BTLMessageTransport, tag: int, into: Any) -> Deferred[None]:
    """Receive a message into a buffer; fail with DistBackendError unless it has exactly that length."""

    def check(length: int) -> None:
        if length != len(into):
            raise DistBackendError(f"btl: the message has {length} bytes, and the tensor {len(into)}")

    return transport.receive(tag, into).addCallback(check)


def _all(outcomes: list[Deferred[Any]]) -> Deferred[Any]:
    """Return a Deferred that fires when all of C{outcomes} have, or fails with the first failure."""
    if len(outcomes) == 1:
        return outcomes[0]

    def first(failure: Failure) -> Failure:
        error: Any = failure.value
        return error.subFailure  # type: ignore[no-any-return]  # of FirstError

    found: Deferred[Any] = gatherResults(outcomes, consumeErrors=True)
    return found.addErrback(first)


def _operation(opts: Any) -> tuple[Any, Any]:
    found = _OPERATIONS.get(opts.reduceOp.op)
    if found is None:
        raise ValueError(f"btl: there is no reduction {opts.reduceOp.op}")
    return found


def _flat(tensor: Tensor) -> Tensor:
    """
    Return the elements of a tensor in one dimension: the same memory if it is contiguous and has the values
    themselves, not their conjugates or negatives; else a copy. C{view} would keep the stride of a single
    element, which then cannot be viewed as bytes.

    @raise ValueError: the tensor is not dense, or not in the memory of this host.
    """
    if tensor.device.type != "cpu" or tensor.layout is not torch.strided:
        raise ValueError(f"btl: tensors must be dense and on the CPU, not {tensor.layout} on {tensor.device}")
    return tensor.detach().resolve_conj().resolve_neg().contiguous().as_strided((tensor.numel(),), (1,))


def _octets(flat: Tensor) -> Any:
    """Return the memory of flat elements of any type as an array of bytes."""
    return flat.view(torch.uint8).numpy()


def _item(tensor: Tensor) -> Any:
    """Return the bytes of a tensor that is sent as a single message. Raises ValueError if it is too long."""
    if tensor.nbytes > LONGEST:
        raise ValueError(f"btl: a tensor of {tensor.nbytes} bytes is too long: at most {LONGEST}")
    return _octets(_flat(tensor))


def _elements(tensor: Tensor) -> Tensor:
    """Return flat elements that NumPy can reduce: bfloat16, which it does not have, becomes float32."""
    flat = _flat(tensor)
    return flat.float() if flat.dtype is torch.bfloat16 else flat


def _restore(tensor: Tensor, flat: Tensor) -> None:
    """Copy the elements of L{_flat} back into the tensor, unless they share its memory."""
    if flat.data_ptr() != tensor.data_ptr():
        tensor.detach().copy_(flat.view(tensor.shape))


def _load(found: Sequence[Any] | None, tensors: Sequence[Tensor]) -> None:
    """
    Copy received data into tensors.

    @param found: of each member, by rank; None: nothing, because this member is not the root.
    """
    for data, tensor in zip(found or (), tensors, strict=True):
        flat = _flat(tensor)
        if len(data) != flat.nbytes:
            raise DistBackendError(f"btl: {len(data)} bytes do not fit a tensor of {flat.nbytes} bytes")
        if len(data):
            _octets(flat)[:] = numpy.frombuffer(data, "u1")
        _restore(tensor, flat)


def _pieces(array: Any) -> list[Any]:
    """Divide an array into parts that are not longer than a message."""
    most = LONGEST // array.itemsize
    return [array[at : at + most] for at in range(0, max(len(array), 1), most)]


def _interface() -> str:
    """Return the address at which others reach this process: that of the interface to C{MASTER_ADDR}."""
    given, master = os.environ.get(INTERFACE), os.environ.get("MASTER_ADDR")
    if given or not master:
        return given or "127.0.0.1"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as route:
        route.connect((master, 9))  # sends nothing
        return str(route.getsockname()[0])


Backend.register_backend("btl", ProcessGroupBTL, devices=["cpu"])
