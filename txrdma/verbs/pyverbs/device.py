"""
RDMA devices of the kernel, through pyverbs, which C{pyverbs:NAME} opens.

Follows InfiniBand Architecture vol. 1, 10.2.3 (protection domains) and 11.2.1.
"""

from __future__ import annotations

import atexit
import mmap
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Final, TypeVar
from weakref import WeakSet

from zope.interface import implementer

from twisted.internet.interfaces import IReactorFDSet, IReactorFromThreads
from twisted.logger import Logger
from twisted.python import threadable

from txrdma.error import DeviceUnavailable, InvalidRequest, RDMAError, ResourceExhausted
from txrdma.iba.types import GID, PKey, QPN
from txrdma.iba.verbs import (
    Access,
    Addressed,
    AddressVector,
    AsyncEventKind,
    Capacity,
    DeviceAttributes,
    DeviceLimits,
    GIDEntry,
    PortAttributes,
    QPAttributes,
    QPKind,
)
from txrdma.interfaces import (
    AsyncEvent,
    IAddressHandle,
    ICompletionChannel,
    ICompletionQueue,
    IMemoryRegion,
    IProtectionDomain,
    IQueuePair,
    IReactorDevice,
    ISharedReceiveQueue,
    IVerbsDevice,
)
from txrdma.kit.listeners import Listeners
from txrdma.kit.logs import errorText
from txrdma.verbs.pyverbs.attributes import addressToPyverbs
from txrdma.verbs.pyverbs.bindings import loadPyverbs, Pyverbs, translated
from txrdma.verbs.pyverbs.events import EventReader, Notification, Removals, takeEvents
from txrdma.verbs.pyverbs.facts import deviceAttributes, deviceLimits, gidTable, pkeyTable, portAttributes
from txrdma.verbs.pyverbs.memory import PyverbsAddressHandle, PyverbsMemoryRegion
from txrdma.verbs.pyverbs.queuepair import PyverbsQueuePair
from txrdma.verbs.pyverbs.queues import PyverbsCompletionChannel, PyverbsCompletionQueue
from txrdma.verbs.pyverbs.resourcetracker import closeEach, leak, openContext, ResourceTracker
from txrdma.verbs.pyverbs.sharedreceives import PyverbsSharedReceiveQueue

_log = Logger()

_Fact = TypeVar("_Fact")

_QUEUE_PAIR_FAILED: Final = frozenset(
    {AsyncEventKind.QP_FATAL, AsyncEventKind.QP_REQUEST_ERROR, AsyncEventKind.QP_ACCESS_ERROR}
)


_CLOSED: Final = InvalidRequest("the protection domain is closed")


@implementer(IProtectionDomain)
class PyverbsProtectionDomain:
    """A protection domain: memory and queue pairs that may access each other."""

    def __init__(self, device: PyverbsDevice, raw: Any) -> None:
        self.device = device
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
            raise InvalidRequest("memory that peers may write needs the local write right, too (IBA 10.6.3)")
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
        send, receive = self.device.ownQueue(send), self.device.ownQueue(receive)
        if shared is not None and not (
            isinstance(shared, PyverbsSharedReceiveQueue) and shared in self._shared
        ):
            raise InvalidRequest(f"{shared!r} is not a shared receive queue of this domain, or closed")
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
        cap = wanted.cap  # which pyverbs has updated
        actual = Capacity(
            cap.max_send_wr, cap.max_recv_wr, cap.max_send_sge, cap.max_recv_sge, cap.max_inline_data
        )
        device = self._handleOf, self.device.admit, self._forget
        queuePair = PyverbsQueuePair(verbs, self._tracker, *device, raw, kind, actual, send, receive, shared)
        self._queuePairs[queuePair] = None
        self.device.register(queuePair)
        return queuePair

    def close(self) -> None:
        if self._error is _CLOSED:
            return
        closeEach(*self._queuePairs, *self._shared, *self._handles, *self._regions)
        self.lost(_CLOSED)
        self._error = _CLOSED
        self.device.domainClosed(self)

    # For queue pairs and the device.

    def _handleOf(self, address: Addressed) -> Any:
        if not isinstance(address, PyverbsAddressHandle) or address not in self._handles:
            raise InvalidRequest(f"{address!r} is not an address handle of this domain, or closed")
        return address.raw

    def sharedReceiveQueues(self) -> tuple[PyverbsSharedReceiveQueue, ...]:
        return tuple(self._shared)

    def _forget(self, queuePair: PyverbsQueuePair) -> None:
        self._queuePairs.pop(queuePair, None)
        self.device.forget(queuePair)

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


@implementer(IVerbsDevice, IReactorDevice)
class PyverbsDevice:
    """An open device of the kernel."""

    canRest = isAttended = True

    def __init__(self, reactor: object, verbs: Pyverbs, name: str) -> None:
        self.name = name
        self.verbs = verbs
        self.tracker = ResourceTracker()
        self._error: RDMAError | None = None
        self._closed = False
        self._readers: list[EventReader] = []
        self._removals: Removals | None = None
        self._queuePairs: dict[QPN, PyverbsQueuePair] = {}
        self._domains: dict[PyverbsProtectionDomain, None] = {}
        self._channels: dict[PyverbsCompletionChannel, None] = {}
        self._completionQueues: dict[PyverbsCompletionQueue, None] = {}
        self._listeners: Listeners[[AsyncEvent]] = Listeners(_log, "{listener!r} failed to handle {event}")
        self._threads = IReactorFromThreads(reactor, None)
        self._context: Any = None
        try:
            self._context, descriptor = openContext(verbs, name)
            known = self._context.query_device()
            ports = range(1, known.phys_port_cnt + 1)
            self._pkeys: int = max(self._context.query_port(port).pkey_tbl_len for port in ports)
        except verbs.Error as error:
            if self._context is not None:
                self.tracker.closeContext(self._context)
            raise DeviceUnavailable(f"pyverbs:{name} can't be opened: {error}") from error
        self._known = known
        self.portCount: int = known.phys_port_cnt
        self.attributes: DeviceAttributes = deviceAttributes(name, known)
        self._listen(IReactorFDSet(reactor, None), descriptor)
        _open.add(self)

    def __repr__(self) -> str:
        return f"<PyverbsDevice {self.name}{' closed' if self._closed else ' gone' if self._error else ''}>"

    def __del__(self) -> None:
        """
        Close an abandoned device in the right order, which the garbage collector does not know.

        The collector may run in any thread, while the reactor's thread uses the descriptors of the device.
        """
        if getattr(self, "_context", None) is None:
            return
        if self._threads is None or threadable.ioThread is None or threadable.isInIOThread():
            self.close()
        else:
            _open.add(self)  # again, since the collector has removed it; the reactor may have stopped
            self._threads.callFromThread(self.close)

    # Attributes.

    @cached_property
    def limits(self) -> DeviceLimits:
        return deviceLimits(self.verbs, self._checkOpen(), self._known)

    def gids(self, port: int) -> Sequence[GID]:
        return tuple(entry.gid for entry in self.gidTable(port))

    def gidTable(self, port: int) -> Sequence[GIDEntry]:
        return self._queryPort(port, gidTable)

    def pkeys(self, port: int) -> Sequence[PKey]:
        return self._queryPort(port, pkeyTable)

    def portAttributes(self, port: int) -> PortAttributes:
        return self._queryPort(port, lambda context, port: portAttributes(self.name, context, port))

    def _queryPort(self, port: int, query: Callable[[Any, int], _Fact]) -> _Fact:
        context = self._checkOpen()
        if not 1 <= port <= self.portCount:
            raise InvalidRequest(f"there is no port {port}; they are 1 to {self.portCount}")
        try:
            return query(context, port)
        except self.verbs.Error as error:
            raise translated(error, f"port {port} of {self.name} can't be queried") from error

    # Objects.

    def createProtectionDomain(self) -> IProtectionDomain:
        try:
            raw = self.verbs.PD(self._checkOpen())
        except self.verbs.Error as error:
            raise translated(error, "no protection domain") from error
        domain = PyverbsProtectionDomain(self, raw)
        self._domains[domain] = None
        return domain

    def createChannel(self) -> ICompletionChannel:
        self._checkOpen()
        channel = PyverbsCompletionChannel(self._channels.pop)
        self._channels[channel] = None
        return channel

    def createCompletionQueue(self, depth: int, channel: ICompletionChannel) -> ICompletionQueue:
        context = self._checkOpen()
        if not isinstance(channel, PyverbsCompletionChannel) or channel not in self._channels:
            raise InvalidRequest(f"{channel!r} is not a channel of this device, or closed")
        if not 1 <= depth <= self._known.max_cqe:
            raise InvalidRequest(f"the depth is from 1 to {self._known.max_cqe}, not {depth}")
        queue = PyverbsCompletionQueue(
            self.verbs, context, depth, channel, self.tracker, self._completionQueues.pop
        )
        self._completionQueues[queue] = None
        return queue

    def subscribe(self, listener: Callable[[AsyncEvent], None]) -> Callable[[], None]:
        return self._listeners.add(listener)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self.tracker.isInherited:
            leak(self)  # and everything that it refers to
            return
        closeEach(*self._domains, *self._completionQueues, *self._channels)
        self._release(DeviceUnavailable(f"the device {self.name} is closed"))
        self._listeners.clear()

    # For objects of the device.

    def ownQueue(self, queue: ICompletionQueue) -> PyverbsCompletionQueue:
        if not isinstance(queue, PyverbsCompletionQueue) or queue not in self._completionQueues:
            raise InvalidRequest(f"{queue!r} is not a completion queue of this device, or closed")
        return queue

    def admit(self, attributes: QPAttributes) -> None:
        """Check attributes against the device, because rxe accepts too many P_Keys and reads."""
        for index in (attributes.pkeyIndex, attributes.alternatePKeyIndex):
            if index is not None and index >= self._pkeys:
                raise InvalidRequest(f"the ports have no P_Key {index}")
        for name, value, most in (
            ("maxRDAtomic", attributes.maxRDAtomic, self._known.max_qp_init_rd_atom),
            ("maxDestRDAtomic", attributes.maxDestRDAtomic, self._known.max_qp_rd_atom),
        ):
            if value is not None and value > most:
                raise InvalidRequest(f"{name} is {value}, more than {most}")

    def register(self, queuePair: PyverbsQueuePair) -> None:
        self._queuePairs[queuePair.number] = queuePair

    def forget(self, queuePair: PyverbsQueuePair) -> None:
        if self._queuePairs.get(queuePair.number) is queuePair:
            del self._queuePairs[queuePair.number]

    def domainClosed(self, domain: PyverbsProtectionDomain) -> None:
        self._domains.pop(domain, None)

    # Events.

    def _listen(self, reactor: IReactorFDSet | None, descriptor: int | None) -> None:
        """Read events on the reactor, if it takes descriptors."""
        if reactor is None:
            return
        if descriptor is not None:
            self._readers.append(EventReader(reactor, descriptor, self.readEvents))
        try:
            self._removals = Removals(self._context)
        except OSError as error:
            _log.info(
                "the removal of {name} will not be noticed: {error}", name=self.name, error=errorText(error)
            )
        else:
            self._readers.append(EventReader(reactor, self._removals.fileno(), self.readRemovals))

    def rest(self) -> None:
        for reader in self._readers:
            reader.stop()

    def wake(self) -> None:
        if self._error is None:
            for reader in self._readers:
                reader.start()

    def descriptors(self) -> Sequence[int]:
        return [] if self._error is not None else [reader.fileno() for reader in self._readers]

    def attend(self) -> None:
        """Process pending events while the device is off the reactor."""
        self.readEvents()
        self.readRemovals()

    def drive(self) -> bool:
        """Do nothing: the adapter sends and acknowledges without this process."""
        return False

    def readEvents(self) -> None:
        """Process pending asynchronous events."""
        if self._error is None:
            for notification in takeEvents(self.verbs, self._context):
                self._notified(notification)

    def readRemovals(self) -> None:
        """Release everything, if the kernel reports that the device was removed."""
        if self._error is None and self._removals is not None and self._removals.isRemoved():
            self._notified(Notification(AsyncEventKind.DEVICE_FATAL, None))

    def _notified(self, notification: Notification) -> None:
        """Act on an asynchronous event, and deliver it to the listeners with its object."""
        kind, number = notification
        if self._error is not None:
            return
        event = AsyncEvent(kind)
        if kind in (AsyncEventKind.SRQ_LIMIT_REACHED, AsyncEventKind.SRQ_ERROR):
            queues = [queue for domain in self._domains for queue in domain.sharedReceiveQueues()]
            # The event does not identify the queue, but a queue whose limit was reached is not armed any
            # more.
            if kind is AsyncEventKind.SRQ_LIMIT_REACHED:
                queues = [queue for queue in queues if queue.limitReached()]
            elif len(queues) > 1:
                queues = []  # any of them may have failed
            for queue in queues[:-1]:
                self._listeners.notify(AsyncEvent(kind, sharedReceiveQueue=queue))
            event = AsyncEvent(kind, sharedReceiveQueue=queues[-1] if queues else None)
        elif kind is AsyncEventKind.CQ_ERROR:
            for overrun in tuple(self._completionQueues):
                if id(overrun) == number:
                    event = AsyncEvent(kind, completionQueue=overrun)
                    overrun.overrun()
        elif kind is AsyncEventKind.DEVICE_FATAL:
            _log.error("the device {name} was removed", name=self.name)
            self._release(DeviceUnavailable(f"the device {self.name} was removed"))
        elif kind.name.startswith(("QP_", "PATH_", "SQ_", "COMM")):
            queuePair = self._queuePairs.get(QPN(number or 0))
            if queuePair is None:
                return  # it is closed
            if kind in _QUEUE_PAIR_FAILED:
                queuePair.noticed()
            event = AsyncEvent(kind, queuePair=queuePair)
        else:
            event = AsyncEvent(kind, port=number)
        self._listeners.notify(event)

    # Closing.

    def _release(self, wrong: RDMAError) -> None:
        """
        Release all objects to the kernel, which may wait for that, children first.

        Objects made from the device remain for their owners to close: queue pairs are in ERR, and methods
        raise C{wrong}.
        """
        if self._error is not None:
            return
        self._error = wrong
        for reader in self._readers:
            reader.stop()
        if self._removals is not None:
            self._removals.close()
        for domain in tuple(self._domains):
            domain.lost(wrong)
        for queue in tuple(self._completionQueues):
            queue.release()
        context, self._context = self._context, None
        self.tracker.closeContext(context)
        _open.discard(self)

    def _checkOpen(self) -> Any:
        if self._error is not None:
            raise DeviceUnavailable(*self._error.args)
        return self._context


_open: WeakSet[PyverbsDevice] = WeakSet()


@atexit.register
def _closeAll() -> None:
    """Close all open devices when the interpreter exits, because it collects objects in any order."""
    for device in tuple(_open):
        device.close()


def openPyverbsDevice(reactor: object, name: str) -> PyverbsDevice:
    """Open a device of the kernel; raises L{DeviceUnavailable}."""
    return PyverbsDevice(reactor, loadPyverbs(), name)
