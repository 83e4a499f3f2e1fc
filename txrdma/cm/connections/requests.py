"""
Requests of a program to its connection: messages, shared memory, and access to the peer's memory.

Follows InfiniBand Architecture vol. 1, 9.7 and 10.8. Each call makes a L{Request}, whose Deferred fires when
the queue pair has completed it.
"""

from __future__ import annotations

from operator import index
from sys import byteorder
from typing import Any, TYPE_CHECKING

from twisted.internet.defer import Deferred, succeed
from twisted.internet.error import ConnectionLost
from twisted.python.failure import Failure

from txrdma.cm.connections._credits import Credits
from txrdma.cm.connections.adapter import Adapter
from txrdma.cm.connections.sendqueue import Request, SendQueue, SendRegions
from txrdma.cm.terms import Agreed
from txrdma.error import InvalidRequest
from txrdma.iba.types import RKey
from txrdma.iba.verbs import AtomicCapability, Operation, SendRequest
from txrdma.interfaces import IMemoryRegion
from txrdma.messages.memory import checkImmediate, MemoryName, octets, sharable, SharedMemory, WORD
from txrdma.messages.transport import MessageTransport

if TYPE_CHECKING:
    from txrdma.kit.buffers import AnyBuffer


class RequestTransport(MessageTransport):
    """
    The base of L{RDMATransport<txrdma.cm.connections.transport.RDMATransport>}: requests of the program.

    They are those of L{IMessageTransport<txrdma.messages.interfaces.IMessageTransport>} and
    L{IAtomicMemory<txrdma.messages.interfaces.IAtomicMemory>}.

    @ivar adapter: the device, with its connection manager.
    @ivar agreed: negotiated terms: depths, MTU, retries.
    """

    adapter: Adapter
    agreed: Agreed
    _credits: Credits
    _regions: SendRegions
    _sends: SendQueue

    def _ask(self, request: Request) -> int:
        """Queue a request; return its number, or 0 after the end."""
        raise NotImplementedError

    def sendMessage(self, data: AnyBuffer, immediate: int | None = None) -> None:
        """
        Send a message: see C{IMessageTransport}.

        @raise InvalidRequest: it is longer than C{agreed.longest}.
        """
        self._ask(self._message(data, immediate))

    def send(self, data: AnyBuffer, immediate: int | None = None) -> Deferred[None]:
        """
        Send a message as L{sendMessage} does.

        @return: fires when the message is in the peer's memory; fails if the connection ends before. If
            cancelled before it is posted, the message is not sent.
        @raise InvalidRequest: it is longer than C{agreed.longest}.
        """
        return self._request(self._message(data, immediate))

    def _message(self, data: AnyBuffer, immediate: int | None) -> Request:
        checkImmediate(immediate)
        data, agreed = bytes(octets(data)), self.agreed
        if len(data) > agreed.longest:
            raise InvalidRequest(f"a message has at most {agreed.longest} bytes, not {len(data)}")
        operation = Operation.SEND if immediate is None else Operation.SEND_WITH_IMMEDIATE
        request = SendRequest(0, operation, immediate=immediate or 0)
        return Request(request, True, data, isLong=len(data) > agreed.messageBytes)

    def share(self, memory: int | AnyBuffer) -> SharedMemory:
        """Let the peer read and write memory: see C{IAtomicMemory}."""
        if self._hasEnded:
            raise InvalidRequest("the connection has ended")
        memory = sharable(memory)
        if isinstance(memory, int):
            region = self._regions.allocate(memory)
            view = region.view[:]  # stays after the end
        else:
            view = memory[:]  # another one than the region's, since the program may release it
            region = self._regions.register(memory, view)
        name = MemoryName(address=region.address, key=region.rkey, length=region.length)
        return SharedMemory(name, view, lambda: self._regions.free(region))

    def read(self, name: bytes, length: int, offset: int = 0) -> Deferred[bytes]:
        """Read from memory that the peer shares: see C{IAtomicMemory}."""
        return self._fetch(Operation.RDMA_READ, name, length, offset)

    def write(
        self, name: bytes, data: AnyBuffer, offset: int = 0, immediate: int | None = None
    ) -> Deferred[None]:
        """
        Write to memory that the peer shares, after everything that was sent and written before.

        @param immediate: 32 bits for the peer's C{writeReceived}, which is called only if there is immediate
            data.
        @return: fires when all bytes are in the peer's memory: see C{IAtomicMemory}.
        @raise InvalidRequest: the range is not within the memory; or an empty write has immediate data, on a
            connection that uses credits.
        """
        checkImmediate(immediate)
        data = octets(data)
        memory = MemoryName.part(name, offset, len(data))
        operation = Operation.RDMA_WRITE
        if immediate is not None:
            if not data and self._credits.usesCredits:
                raise InvalidRequest(
                    "an empty write with immediate data would be mistaken for a return of credits"
                )
            operation = Operation.RDMA_WRITE_WITH_IMMEDIATE
        request = SendRequest(0, operation, immediate=immediate or 0)
        request.remoteAddress, request.rkey = memory.address, RKey(memory.key)
        return self._request(Request(request, immediate is not None, data))

    def compareAndSwap(self, name: bytes, expected: int, new: int, offset: int = 0) -> Deferred[int]:
        """Replace a number in memory that the peer shares: see C{IAtomicMemory}."""
        return self._change(Operation.COMPARE_AND_SWAP, name, offset, new, expected)

    def fetchAndAdd(self, name: bytes, amount: int, offset: int = 0) -> Deferred[int]:
        """Add to a number in memory that the peer shares: see C{IAtomicMemory}."""
        return self._change(Operation.FETCH_AND_ADD, name, offset, index(amount) % (1 << 64), 0)

    def _change(
        self, operation: Operation, name: bytes, offset: int, operand: int, compare: int
    ) -> Deferred[int]:
        if self.adapter.device.attributes.atomics is AtomicCapability.NONE:
            raise InvalidRequest(f"{self.adapter.device.name} has no atomic operations")
        operand, compare = index(operand), index(compare)
        if not (0 <= operand < 1 << 64 and 0 <= compare < 1 << 64):
            raise InvalidRequest("a number has 64 bits, and is not negative")
        if MemoryName.part(name, offset, WORD).address % WORD:
            raise InvalidRequest(f"the address at offset {offset} is not divisible by {WORD}")
        fetching = self._fetch(operation, name, WORD, offset, operand, compare)
        before: Deferred[int] = Deferred(lambda _: fetching.cancel())
        fetching.addCallback(int.from_bytes, byteorder).addCallbacks(before.callback, before.errback)
        return before

    def _fetch(
        self,
        operation: Operation,
        name: bytes,
        length: int,
        offset: int,
        operand: int = 0,
        compare: int = 0,
    ) -> Deferred[bytes]:
        memory = MemoryName.part(name, offset, length)
        if not self.agreed.initiatorDepth:
            raise InvalidRequest("the peer accepts no reads and no atomic operations")
        if not memory.length:
            return succeed(b"")
        request = SendRequest(0, operation, operand=operand, compare=compare)
        request.remoteAddress, request.rkey = memory.address, RKey(memory.key)
        return self._request(Request(request, False, None, memory.length))

    def _request(self, request: Request) -> Deferred[Any]:
        """Queue a request; return a Deferred that fires when it has completed."""

        def cancel(_: Deferred[Any]) -> None:
            request.done = None
            if self._sends.withdraw(request):
                self._proceed()

        done: Deferred[Any] = Deferred(cancel)
        request.done = done
        try:
            number = self._ask(request)
        except BaseException:
            request.done = None  # the caller gets the exception
            raise
        if not number:
            request.fail(Failure(ConnectionLost("the connection has ended")))
        return done

    def allocateMemory(self, length: int) -> IMemoryRegion:
        """Allocate memory that the peer may read and write until the connection ends."""
        return self._regions.allocate(length)

    def freeMemory(self, region: IMemoryRegion) -> None:
        """
        Free memory before the connection ends. Idempotent.

        A later request of the peer for it fails, which ends the connection.
        """
        self._regions.free(region)
