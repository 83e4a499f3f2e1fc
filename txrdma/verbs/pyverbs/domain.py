"""
Protection domains of libibverbs: memory regions, address handles, queue pairs.

Follows InfiniBand Architecture vol. 1, 10.2.3 and 10.6.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable
from typing import Any, Final, Protocol

from zope.interface import implementer

from txrdma.error import InvalidRequest, RDMAError, ResourceExhausted
from txrdma.iba.types import LKey, RKey
from txrdma.iba.verbs import Access, Addressed, AddressVector, Capacity, QPAttributes, QPKind
from txrdma.interfaces import (
    IAddressHandle,
    ICompletionQueue,
    IMemoryRegion,
    IProtectionDomain,
    IQueuePair,
    ISharedReceiveQueue,
)
from txrdma.verbs.pyverbs.attributes import addressToPyverbs
from txrdma.verbs.pyverbs.bindings import Pyverbs, translated
from txrdma.verbs.pyverbs.queuepair import PyverbsQueuePair
from txrdma.verbs.pyverbs.queues import PyverbsCompletionQueue
from txrdma.verbs.pyverbs.resourcetracker import closeEach, keep, ResourceTracker
from txrdma.verbs.pyverbs.sharedreceives import PyverbsSharedReceiveQueue

_EMPTY: Final = memoryview(b"")
_CLOSED: Final = InvalidRequest("the protection domain is closed")


class Device(Protocol):
    """The interface of the device for its protection domains, which it makes."""

    verbs: Pyverbs
    tracker: ResourceTracker

    def ownQueue(self, queue: ICompletionQueue) -> PyverbsCompletionQueue:
        """The device's completion queue as its class; raises L{InvalidRequest} for other queues."""

    def admit(self, attributes: QPAttributes) -> None:
        """Check attributes against the device, where kernels may not; raises L{InvalidRequest}."""

    def keep(self, queuePair: PyverbsQueuePair) -> None:
        """Register a queue pair."""

    def forget(self, queuePair: PyverbsQueuePair) -> None:
        """Forget a queue pair that has been closed."""

    def domainClosed(self, domain: PyverbsProtectionDomain) -> None:
        """Forget a protection domain that has been closed."""


@implementer(IMemoryRegion)
class PyverbsMemoryRegion:
    """Registered memory; its buffer can't be freed before it is deregistered."""

    def __init__(
        self,
        verbs: Pyverbs,
        tracker: ResourceTracker,
        domain: Any,
        view: memoryview,
        access: Access,
        mapping: mmap.mmap | None,
        closed: Callable[[PyverbsMemoryRegion], object],
    ) -> None:
        self._tracker = tracker
        self._mapping = mapping
        self._onClosed = closed
        self.view = view
        self.length = view.nbytes
        self._anchor: Any = (ctypes.c_char * self.length).from_buffer(view)
        self.address = ctypes.addressof(self._anchor)
        try:
            self._raw: Any = verbs.MR(domain, self.length, int(access), address=self.address)
        except verbs.Error as error:
            raise translated(error, f"no memory region of {self.length} bytes, {access!r}") from error
        self.lkey = LKey(self._raw.lkey)
        self.rkey = RKey(self._raw.rkey)

    def __repr__(self) -> str:
        return f"<PyverbsMemoryRegion {self.address:#x}+{self.length}{'' if self._raw else ' closed'}>"

    def close(self) -> None:
        self.lost()
        if self._onClosed is _nobody:
            return
        onClosed, self._onClosed = self._onClosed, _nobody
        if self._mapping is not None:
            view, self.view = self.view, _EMPTY
            view.release()
            try:
                self._mapping.close()
            except BufferError:
                pass  # the last slice unmaps it
            self._mapping = None
        onClosed(self)

    def lost(self) -> None:
        """Deregister the memory; its bytes stay."""
        raw, self._raw = self._raw, None
        if raw is not None:
            self._tracker.close(raw)
            if self._tracker.stuck:
                keep(self._anchor)
            self._anchor = None


def _nobody(region: PyverbsMemoryRegion) -> None:
    """Do nothing: the region is closed already, and its domain knows that."""


@implementer(IAddressHandle)
class PyverbsAddressHandle:
    """The address of a port, for datagrams."""

    def __init__(
        self,
        tracker: ResourceTracker,
        raw: Any,
        address: AddressVector,
        closed: Callable[[PyverbsAddressHandle], object],
    ) -> None:
        self.address = address
        self.raw: Any = raw
        self._tracker = tracker
        self._onClosed = closed

    def close(self) -> None:
        raw, self.raw = self.raw, None
        if raw is not None:
            self._tracker.close(raw)
            self._onClosed(self)


@implementer(IProtectionDomain)
class PyverbsProtectionDomain:
    """A protection domain: memory and queue pairs that may access each other."""

    def __init__(self, device: Any, raw: Any) -> None:
        self.device: Any = device
        self._own: Device = device
        self._verbs: Pyverbs = device.verbs
        self._tracker: ResourceTracker = device.tracker
        self._raw: Any = raw
        self._error: RDMAError | None = None
        self._queuePairs: dict[PyverbsQueuePair, None] = {}
        self._shared: dict[PyverbsSharedReceiveQueue, None] = {}
        self._handles: dict[PyverbsAddressHandle, None] = {}
        self._regions: dict[PyverbsMemoryRegion, None] = {}

    def allocateMemory(self, length: int, access: Access) -> IMemoryRegion:
        self._checkOpen()
        if length < 1:
            raise InvalidRequest(f"a memory region has at least one byte, not {length}")
        try:
            mapping = mmap.mmap(-1, -(-length // mmap.PAGESIZE) * mmap.PAGESIZE)
        except (OSError, ValueError, OverflowError) as error:
            raise ResourceExhausted(f"no memory region of {length} bytes: {error}") from error
        return self._register(memoryview(mapping)[:length], access, mapping)

    def registerMemory(self, buffer: memoryview, access: Access) -> IMemoryRegion:
        self._checkOpen()
        view = memoryview(buffer)
        if view.readonly or not view.c_contiguous:
            raise InvalidRequest("only writable, contiguous memory can be registered")
        if view.nbytes == 0:
            raise InvalidRequest("a memory region has at least one byte")
        return self._register(view.cast("B"), access, None)

    def _register(self, view: memoryview, access: Access, mapping: mmap.mmap | None) -> PyverbsMemoryRegion:
        if access & (Access.REMOTE_WRITE | Access.REMOTE_ATOMIC) and not access & Access.LOCAL_WRITE:
            raise InvalidRequest("memory that peers may write must be writable for ourselves (IBA 10.6.3)")
        region = PyverbsMemoryRegion(
            self._verbs, self._tracker, self._raw, view, access, mapping, self._regions.pop
        )
        self._regions[region] = None
        return region

    def createAddressHandle(self, address: AddressVector) -> IAddressHandle:
        self._checkOpen()
        try:
            raw = self._verbs.AH(self._raw, attr=addressToPyverbs(self._verbs, address))
        except self._verbs.Error as error:
            raise translated(error, f"no address handle for {address}") from error
        handle = PyverbsAddressHandle(self._tracker, raw, address, self._handles.pop)
        self._handles[handle] = None
        return handle

    def createSharedReceiveQueue(self, maxReceive: int, maxSegments: int) -> ISharedReceiveQueue:
        self._checkOpen()
        if maxReceive < 1 or maxSegments < 0:
            raise InvalidRequest(f"no shared receive queue of {maxReceive} with {maxSegments} segments")
        queue = PyverbsSharedReceiveQueue(
            self._verbs, self._tracker, self._raw, maxReceive, maxSegments, self._shared.pop
        )
        self._shared[queue] = None
        return queue

    def createQueuePair(
        self,
        kind: QPKind,
        send: ICompletionQueue,
        receive: ICompletionQueue,
        capacity: Capacity,
        shared: ISharedReceiveQueue | None = None,
    ) -> IQueuePair:
        self._checkOpen()
        verbs = self._verbs
        if kind not in (QPKind.RC, QPKind.UD):
            raise InvalidRequest(f"queue pairs are RC or UD here, not {kind!r}")
        send, receive = self._own.ownQueue(send), self._own.ownQueue(receive)
        if shared is not None and not (
            isinstance(shared, PyverbsSharedReceiveQueue) and shared in self._shared
        ):
            raise InvalidRequest(f"{shared!r} is no shared receive queue of this domain, or closed")
        try:
            wanted = verbs.QPInitAttr(
                qp_type=int(kind),
                scq=send.raw,
                rcq=receive.raw,
                srq=None if shared is None else shared.raw,
                cap=verbs.QPCap(
                    max_send_wr=capacity.maxSend,
                    max_recv_wr=0 if shared else capacity.maxReceive,
                    max_send_sge=capacity.maxSendSegments,
                    max_recv_sge=0 if shared else capacity.maxReceiveSegments,
                    max_inline_data=capacity.maxInline,
                ),
                sq_sig_all=0,
            )
            raw = verbs.QP(self._raw, wanted)
        except verbs.Error as error:
            raise translated(error, f"no queue pair of {capacity}") from error
        except OverflowError as error:
            raise InvalidRequest(f"no queue pair of {capacity}: {error}") from error
        has = wanted.cap
        really = Capacity(
            has.max_send_wr, has.max_recv_wr, has.max_send_sge, has.max_recv_sge, has.max_inline_data
        )
        queuePair = PyverbsQueuePair(verbs, self._tracker, self, raw, kind, really, send, receive, shared)
        self._queuePairs[queuePair] = None
        self._own.keep(queuePair)
        return queuePair

    def close(self) -> None:
        if self._error is _CLOSED:
            return
        closeEach(*self._queuePairs, *self._shared, *self._handles, *self._regions)
        self.lost(_CLOSED)
        self._error = _CLOSED
        self._own.domainClosed(self)

    # For queue pairs and the device.

    def handleOf(self, address: Addressed) -> Any:
        """The address handle of pyverbs."""
        if not isinstance(address, PyverbsAddressHandle) or address not in self._handles:
            raise InvalidRequest(f"{address!r} is no address handle of this domain, or closed")
        return address.raw

    def admit(self, attributes: QPAttributes) -> None:
        self._own.admit(attributes)

    def sharedReceiveQueues(self) -> tuple[PyverbsSharedReceiveQueue, ...]:
        """The shared receive queues of the domain."""
        return tuple(self._shared)

    def forget(self, queuePair: PyverbsQueuePair) -> None:
        self._queuePairs.pop(queuePair, None)
        self._own.forget(queuePair)

    def lost(self, wrong: RDMAError) -> None:
        """Release the domain and everything in it; calls raise C{wrong} from now on."""
        if self._error is None:
            self._error = wrong
        for queuePair in tuple(self._queuePairs):
            queuePair.lost(wrong)
        for shared in tuple(self._shared):
            shared.lost(wrong)
        for handle in tuple(self._handles):
            handle.close()
        for region in tuple(self._regions):
            region.lost()
        raw, self._raw = self._raw, None
        if raw is not None:
            self._tracker.close(raw)

    def _checkOpen(self) -> None:
        if self._error is not None:
            raise self._error.__class__(*self._error.args)
