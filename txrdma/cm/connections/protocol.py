"""A base class for protocols of connections by the communication manager."""

from __future__ import annotations

from zope.interface import implementer

from txrdma.cm.connections.transport import RDMATransport
from txrdma.cm.interfaces import IRDMAProtocol
from txrdma.cm.layouts.messages import CMPath
from txrdma.messages.protocol import MessageProtocol


@implementer(IRDMAProtocol)
class RDMAProtocol(MessageProtocol):
    """A protocol that does nothing until it is subclassed: see L{IRDMAProtocol}."""

    answer = b""
    transport: RDMATransport

    def writeReceived(self, length: int, immediate: int) -> None:
        """Called when the peer has written into memory of this end, with immediate data."""

    def alternatePathRequested(self, path: CMPath) -> bool:
        """Called when the peer requests an alternate path; returns whether to accept it."""
        return True

    def pathMigrated(self, path: CMPath) -> None:
        """Called when the connection has migrated to its alternate path."""
