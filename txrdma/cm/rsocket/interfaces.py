"""
Interfaces of mapped memory: what the transport of an rsocket offers beside a stream of bytes.
"""

from __future__ import annotations

from collections.abc import Sequence

from zope.interface import Attribute, Interface

from twisted.internet.defer import Deferred


class IMappedMemory(Interface):
    """Memory of this end that the peer may write to at offsets, until it is closed or the connection ends."""

    offset: int = Attribute("The offset of the first byte, by which the peer names it.")
    length: int = Attribute("The length in bytes.")
    buffer: memoryview = Attribute(
        "The bytes. Those that the peer writes just appear here, without an event; they stay after the end."
    )

    def close() -> None:
        """
        Map the memory no more, as C{riounmap} of librdmacm does. Twice is fine.

        The peer is told so, which C{riounmap} does not do. A write that the peer has made meanwhile
        fails, and the connection ends by that with C{ConnectionLost}, as reliable connections do.
        """


class IMappingTransport(Interface):
    """
    A stream's transport whose ends also write into each other's memory: rsockets' mapped memory.

    Offsets are agreed on by the programs; each end has offsets of its own, from 0 to 2**63 - 1. Writes,
    mappings and the bytes of the stream are done in the order in which the program asks for them: who has
    read what was written to the stream behind a write to mapped memory finds all of that write in the memory.
    C{loseConnection} waits for all of them. Mapped memory is beside TLS: nothing encrypts it.
    """

    peerMappings: Sequence[range] = Attribute(
        "The offsets that the peer has mapped at present, ordered; neighbours are not put together."
    )

    def mapMemory(length: int, offset: int = 0) -> IMappedMemory:
        """
        Allocate memory and map it at an offset, as C{riomap} of librdmacm does with C{PROT_WRITE}.

        The peer is told behind all that was written before, and before what is written later.

        @param length: bytes, 1 to 2**32 - 1; they are zeros at first.
        @raise txrdma.error.InvalidRequest: the bytes have no such offsets, or share some with memory that is
            mapped already, or the connection is being closed.
        @raise txrdma.error.ResourceExhausted: the peer's table has no room for another mapping: its
            C{mappings} are all in use, or it offers none, which is librdmacm's default (C{RDMA_IOMAPSIZE}).
        """

    def writeMapped(offset: int, data: bytes) -> Deferred[None]:
        """
        Write to memory that the peer has mapped, as C{riowrite} of librdmacm does.

        To cancel the Deferred is to withdraw what is not under way; some of the bytes may be written.

        @param data: bytes that have to be within one mapping of the peer, which may be any number of them.
        @return: fires when the peer's memory has all bytes. Fails with L{txrdma.error.ProtectionError} if the
            peer has not mapped memory there, or maps it no more before all is under way, and with
            C{ConnectionLost} if the connection ends before.
        """

    def whenMapped(offset: int, length: int = 1) -> Deferred[None]:
        """
        Wait until the peer has mapped memory.

        To cancel the Deferred is to wait no more.

        @param length: bytes that have to be within one mapping.
        @return: fires at once if the peer has done so. Fails with C{ConnectionLost} if the connection ends
            before, and does not fire if the peer never maps memory.
        """
