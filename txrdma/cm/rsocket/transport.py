"""
The transport of an rsocket stream: for protocols it is as Twisted's TCP transport.
"""

from __future__ import annotations

from zope.interface import implementer

from twisted.internet.defer import Deferred

from txrdma.cm.connections.transport import RDMATransport
from txrdma.cm.rsocket.interfaces import IMappingTransport
from txrdma.cm.rsocket.mapped import MappedMemory
from txrdma.cm.rsocket.stream import RSocketEnd
from txrdma.cm.terms import KEEPALIVE
from txrdma.streams.connection import MessageStreamTransport


@implementer(IMappingTransport)
class RSocketTransport(MessageStreamTransport[RSocketEnd]):
    """The transport that a protocol sees of an rsocket connection: Twisted's interfaces to its end."""

    __slots__ = ()

    @property
    def connection(self) -> RDMATransport:
        """The RDMA connection beneath: its route, its manager, what was agreed on."""
        return self.stream.connection

    # IMappingTransport

    @property
    def peerMappings(self) -> list[range]:
        return self.stream.peerMappings

    def mapMemory(self, length: int, offset: int = 0) -> MappedMemory:
        """
        Map memory for writes of the peer: see L{IMappingTransport}.

        @raise txrdma.error.RDMAError: there is none, or it can't be mapped there.
        """
        return self.stream.mapMemory(length, offset)

    def writeMapped(self, offset: int, data: bytes) -> Deferred[None]:
        return self.stream.writeMapped(offset, data)

    def whenMapped(self, offset: int, length: int = 1) -> Deferred[None]:
        return self.stream.whenMapped(offset, length)

    # ITCPTransport

    def getTcpKeepAlive(self) -> bool:
        return self.stream.keepalive is not None

    def setTcpKeepAlive(self, enabled: bool) -> None:
        """Start or stop to probe an idle peer."""
        if enabled != self.getTcpKeepAlive():
            self.stream.setKeepAlive(KEEPALIVE if enabled else None)
