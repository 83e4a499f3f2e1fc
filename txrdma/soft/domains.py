"""
Protection domains: what may reach each other, and how much of each kind a device gives.

Follows InfiniBand Architecture vol. 1, 10.2.3 (protection domains) and 10.2.2.2 (address handles).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from zope.interface import implementer

from txrdma.error import InvalidRequest
from txrdma.iba.verbs import Access, AddressVector, Capacity, DeviceLimits, QPAttributes, QPKind
from txrdma.interfaces import (
    AsyncEvent,
    IAddressHandle,
    ICompletionQueue,
    IMemoryRegion,
    IProtectionDomain,
    IQueuePair,
    ISharedReceiveQueue,
)
from txrdma.soft.core.memory import Domain, KeyTable
from txrdma.soft.core.queuepair import SoftQueuePair
from txrdma.soft.core.sharedreceives import SoftSharedReceiveQueue
from txrdma.soft.limits import checkAvailable, checkRange


@implementer(IAddressHandle)
class SoftAddressHandle:
    """The address of a port, for datagrams."""

    def __init__(
        self, domain: Domain, address: AddressVector, closed: Callable[[SoftAddressHandle], None]
    ) -> None:
        self.domain = domain
        self.address = address
        self._onClosed = closed

    def __repr__(self) -> str:
        return f"<SoftAddressHandle {self.address}>"

    def close(self) -> None:
        self._onClosed(self)


class DomainsDevice(Protocol):
    """
    The interface of the software device for its protection domains, which it makes.

    @ivar domains: open domains; C{addressHandles} and C{sharedReceiveQueues} are those of all domains.
    """

    keys: KeyTable
    limits: DeviceLimits
    domains: dict[SoftProtectionDomain, None]
    addressHandles: dict[SoftAddressHandle, None]
    sharedReceiveQueues: dict[SoftSharedReceiveQueue, None]

    def admit(self, asked: QPAttributes, current: QPAttributes) -> None:
        """
        Compare attributes with the device's ports and limits.

        @raise InvalidRequest: the device does not have what they name.
        """

    def notify(self, event: AsyncEvent) -> None:
        """Hand an asynchronous event to whoever has subscribed."""

    def newQueuePair(
        self,
        domain: SoftProtectionDomain,
        kind: QPKind,
        send: ICompletionQueue,
        receive: ICompletionQueue,
        capacity: Capacity,
        shared: SoftSharedReceiveQueue | None,
    ) -> SoftQueuePair:
        """Make a queue pair of a domain, which has checked C{shared}."""


@implementer(IProtectionDomain)
class SoftProtectionDomain(Domain):
    """A protection domain: memory and queue pairs that may access each other."""

    def __init__(self, device: DomainsDevice) -> None:
        self.device = device
        self._queuePairs: dict[SoftQueuePair, None] = {}
        self._closed = False

    def allocateMemory(self, length: int, access: Access) -> IMemoryRegion:
        self._checkOpen()
        self._checkLength(length)
        return self.device.keys.allocate(self, length, access)

    def registerMemory(self, buffer: memoryview, access: Access) -> IMemoryRegion:
        self._checkOpen()
        self._checkLength(memoryview(buffer).nbytes)
        return self.device.keys.register(self, buffer, access)

    def createAddressHandle(self, address: AddressVector) -> IAddressHandle:
        self._checkOpen()
        handles, limits = self.device.addressHandles, self.device.limits
        checkAvailable(handles, limits.maxAddressHandles, "address handles")
        self.device.admit(QPAttributes(address=address), QPAttributes())
        handle = SoftAddressHandle(self, address, lambda handle: handles.pop(handle, None))
        handles[handle] = None
        return handle

    def createSharedReceiveQueue(self, maxReceive: int, maxSegments: int) -> ISharedReceiveQueue:
        self._checkOpen()
        queues, limits = self.device.sharedReceiveQueues, self.device.limits
        checkRange("maxReceive", maxReceive, 1, limits.maxSharedReceiveQueueRequests)
        checkRange("maxSegments", maxSegments, 0, limits.maxSharedReceiveQueueSegments)
        checkAvailable(queues, limits.maxSharedReceiveQueues, "shared receive queues")
        queue = SoftSharedReceiveQueue(
            self, maxReceive, maxSegments, self.device.notify, lambda queue: queues.pop(queue, None)
        )
        queues[queue] = None
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
        if shared is not None and (
            not isinstance(shared, SoftSharedReceiveQueue) or shared.domain is not self
        ):
            raise InvalidRequest(f"{shared!r} is no shared receive queue of this domain")
        queuePair = self.device.newQueuePair(self, kind, send, receive, capacity, shared)
        self._queuePairs[queuePair] = None
        return queuePair

    def forget(self, queuePair: SoftQueuePair) -> None:
        self._queuePairs.pop(queuePair, None)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        for queuePair in tuple(self._queuePairs):
            queuePair.close()
        for queue in tuple(self.device.sharedReceiveQueues):
            if queue.domain is self:
                queue.close()
        for handle in tuple(self.device.addressHandles):
            if handle.domain is self:
                handle.close()
        for region in self.device.keys.regionsOf(self):
            region.close()
        self.device.domains.pop(self, None)

    def _checkOpen(self) -> None:
        if self._closed:
            raise InvalidRequest("the protection domain is closed")

    def _checkLength(self, length: int) -> None:
        checkRange("the length of a memory region", length, 1, self.device.limits.maxMemoryRegionLength)
