"""The transport of an rsocket stream."""

from __future__ import annotations

from twisted.internet.defer import Deferred

from txrdma.cm.connections.transport import RDMATransport
from txrdma.cm.rsocket.mapped import MappedMemory, over
from txrdma.cm.rsocket.stream import RSocketEnd
from txrdma.cm.terms import KEEPALIVE
from txrdma.error import InvalidRequest
from txrdma.messages.interfaces import IAtomicMemory
from txrdma.streams.connection import MessageStreamTransport


class RSocketTransport(MessageStreamTransport[RSocketEnd]):
    """
    The transport of an rsocket stream, whose ends may also access each other's memory.

    Mapped memory is that of librdmacm. Offsets are agreed on by the applications; each end has its own
    offsets, from 0 to 2**63 - 1. Writes, mappings and the bytes of the stream are executed in the order of
    the calls: an end that has read bytes of the stream finds in its memory everything that was written there
    before. C{loseConnection} waits for all of them. TLS does not encrypt memory.
    """

    __slots__ = ()

    @property
    def connection(self) -> RDMATransport:
        """
        The RDMA connection that carries the stream: its route, its manager, its terms.

        @raise InvalidRequest: the stream has ended, also during C{connectionLost}.
        """
        return self.stream.connection

    @property
    def remoteMemory(self) -> IAtomicMemory:
        """
        Shares memory by names, as transports of C{rdma:} do, and accesses that of the peer.

        Requests and bytes of the stream do not wait for each other, but C{loseConnection} waits for both. A
        peer that is a program of librdmacm does not support names; if it has opened the connection, reads and
        atomic operations raise L{InvalidRequest}.
        """
        return self.stream.remoteMemory

    @property
    def peerMappings(self) -> list[range]:
        """The offsets that the peer has mapped at present, in order; adjacent ones are not merged."""
        return self.stream.peerMappings

    def mapMemory(self, length: int, offset: int = 0) -> MappedMemory:
        """
        Allocate memory and map it at an offset, as C{riomap} of librdmacm does with C{PROT_WRITE}.

        @param length: bytes, 1 to 2**32 - 1; they are zeros at first.
        @raise txrdma.error.InvalidRequest: the offsets are out of range or mapped already, or the connection
            is being closed.
        @raise txrdma.error.ResourceExhausted: the peer's table is full: its C{mappings} are all in use, or it
            offers none, which is librdmacm's default (C{RDMA_IOMAPSIZE}).
        """
        mappings = self.stream.mappings
        if mappings is None:
            raise InvalidRequest("the connection is being closed")
        return mappings.map(length, offset)

    def writeMapped(self, offset: int, data: bytes) -> Deferred[None]:
        """
        Write to memory that the peer has mapped, as C{riowrite} of librdmacm does.

        @param data: any number of bytes, which must be within one mapping of the peer.
        @return: fires when all bytes are in the peer's memory. Fails with L{txrdma.error.ProtectionError} if
            the peer has not mapped memory there, or unmaps it before everything is posted, and with
            C{ConnectionLost} if the connection ends before. If cancelled, the unposted part is withdrawn.
        """
        mappings = self.stream.mappings
        return over() if mappings is None else mappings.write(offset, data)

    def whenMapped(self, offset: int, length: int = 1) -> Deferred[None]:
        """
        Wait until the peer has mapped memory.

        @param length: bytes that must be within one mapping.
        @return: fires as soon as the peer has done so; fails with C{ConnectionLost} if the connection ends
            before. It can be cancelled.
        """
        mappings = self.stream.mappings
        return over() if mappings is None else mappings.wait(offset, length)

    # ITCPTransport

    def getTcpKeepAlive(self) -> bool:
        return self.stream.keepalive is not None

    def setTcpKeepAlive(self, enabled: bool) -> None:
        """Start or stop to probe an idle peer."""
        if enabled != self.getTcpKeepAlive():
            self.stream.setKeepAlive(self.stream.configuredKeepalive or KEEPALIVE if enabled else None)
