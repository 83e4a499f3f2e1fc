"""
The transport of an rsocket stream: for protocols it is as Twisted's TCP transport.
"""

from __future__ import annotations

from zope.interface import implementer

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IProtocol, ITCPTransport, ITLSTransport

from txrdma.cm.interfaces import IRDMATransport
from txrdma.cm.rsocket.interfaces import IMappingTransport
from txrdma.cm.rsocket.mapped import MappedMemory
from txrdma.cm.rsocket.stream import RSocketEnd
from txrdma.cm.terms import KEEPALIVE
from txrdma.streams.transport import StreamTransport


@implementer(ITCPTransport, ITLSTransport, IMappingTransport)
class RSocketTransport(StreamTransport[RSocketEnd]):
    """The transport that a protocol sees of an rsocket connection: Twisted's interfaces to its end."""

    __slots__ = ()

    def __init__(self, stream: RSocketEnd, protocol: IProtocol) -> None:
        role = "client" if stream.isClient else str(stream.host.port)
        super().__init__(stream, stream, protocol, f"{type(protocol).__name__},{role},{stream.peer.host}")

    def __repr__(self) -> str:
        stream = self.stream
        role = "client" if stream.isClient else "server"
        return f"<RSocketTransport {role} to {stream.peer.host}:{stream.peer.port}>"

    @property
    def connection(self) -> IRDMATransport:
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

    def getTcpNoDelay(self) -> bool:
        """Whether data are sent without a delay: always."""
        return True

    def setTcpNoDelay(self, enabled: bool) -> None:
        """Leave all as it is: nothing is ever delayed."""

    def getTcpKeepAlive(self) -> bool:
        """Whether an idle peer is probed."""
        return self.stream.keepalive is not None

    def setTcpKeepAlive(self, enabled: bool) -> None:
        """Probe an idle peer from now on, or no more."""
        if enabled != self.getTcpKeepAlive():
            self.stream.setKeepAlive(KEEPALIVE if enabled else None)

    def getHandle(self) -> None:
        """The socket of the connection: there is none."""

    @property
    def _tlsClientDefault(self) -> bool:
        return self.stream.isClient
