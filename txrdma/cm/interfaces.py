"""Interfaces of the communication manager: connections of either manager, and protocols of applications."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, TYPE_CHECKING

from zope.interface import Attribute, Interface

from twisted.internet.defer import Deferred

from txrdma.messages.interfaces import IMessageProtocol

if TYPE_CHECKING:
    from txrdma.cm.core.alternate import PathCheck
    from txrdma.cm.core.events import Event
    from txrdma.cm.layouts.messages import APStatus, CMPath, RejectReason, REP, REQ
    from txrdma.iba.path import IBPath


class IManagedConnection(Interface):
    """A connection of a communication manager, txrdma's or the kernel's: its messages, not its queue pair."""

    managedBy: str = Attribute("The manager of the connection: txrdma, or librdmacm.")
    request: REQ = Attribute("The REQ of the connection.")
    reply: REP | None = Attribute("The REP of the connection; None before.")
    state: str = Attribute("The state by the specification's name: REQ_SENT, ESTABLISHED...")
    primary: CMPath = Attribute("The path in use, as this end sees it.")
    alternate: CMPath | None = Attribute("The path to migrate to; None while there is none.")

    def setHandler(
        handler: Callable[[IManagedConnection, Event], None],
        checkMigration: Callable[[], None] | None = None,
    ) -> None:
        """
        Set the function that is called with each event from now on.

        @param checkMigration: called before a LAP is handled, to report a migration of the queue pair.
        """

    def startingPSN() -> int:
        """The PSN with which the peer of a passive end begins."""

    def accept(reply: REP) -> None:
        """Answer a REQ, with a queue pair that is ready to send."""

    def ready(privateData: bytes = b"") -> None:
        """Answer a REP: the queue pair is ready to send."""

    def reject(reason: RejectReason = ..., information: bytes = b"", privateData: bytes = b"") -> None:
        """Answer a REQ or a REP by a REJ."""

    def disconnect(privateData: bytes = b"") -> None:
        """End the connection, whatever its state, or answer the peer that has ended it."""

    def communicating() -> None:
        """Note that the queue pair has received data, which replaces a lost RTU."""

    def migrated() -> None:
        """Note that the queue pair has migrated."""

    def loadAlternatePath(path: IBPath | CMPath, privateData: bytes = b"") -> Deferred[CMPath]:
        """Request an alternate path from the peer."""

    def replyAlternatePath(transactionID: int, status: APStatus = ..., information: bytes = b"") -> None:
        """Answer a peer's request for an alternate path."""


class IConnectionManager(Interface):
    """A manager of connections: txrdma's own, on management datagrams, or the kernel's."""

    counters: Counter[str] = Attribute("Numbers of messages, by direction and kind: C{sent REQ}.")
    states: Counter[str] = Attribute("Numbers of connections by state, with the specification's names.")
    listeners: int = Attribute("The number of listeners and of served datagram services.")

    def listen(
        serviceID: int,
        handler: Callable[[IManagedConnection, Event], None],
        *,
        backlog: int = ...,
        offset: int = ...,
        pattern: bytes = ...,
        mayReload: bool = ...,
        checkPath: PathCheck = ...,
    ) -> Callable[[], None]:
        """Report REQs for a service; the returned function stops listening."""

    def connect(
        request: REQ,
        path: IBPath,
        handler: Callable[[IManagedConnection, Event], None],
        *,
        isPeerToPeer: bool = ...,
        mayReload: bool = ...,
        checkPath: PathCheck = ...,
    ) -> IManagedConnection:
        """Request a connection from a peer by a REQ."""

    def close() -> None:
        """Forget all connections, and handle no more messages."""


class IRDMAProtocol(IMessageProtocol):
    """
    A protocol of messages and one-sided writes.

    Its transport is a L{RDMATransport<txrdma.cm.connections.transport.RDMATransport>}. An L{IMessageProtocol}
    without the attributes of this interface answers without private data, accepts paths, and is not notified.
    """

    answer: bytes = Attribute("Private data of the REP that accepts; not used by the end that connects.")

    def writeReceived(length: int, immediate: int) -> None:
        """
        Called when the peer has written into memory of this end, with immediate data.

        @param length: the number of bytes.
        """

    def alternatePathRequested(path: CMPath) -> bool:
        """
        Called when the peer requests an alternate path, by a LAP or in its REQ.

        @param path: as this end sees it; its local GID belongs to the device.
        @return: whether to accept the path.
        """

    def pathMigrated(path: CMPath) -> None:
        """Called when the connection has migrated to its alternate path."""


class IPreparedProtocol(IMessageProtocol):
    """A protocol whose private data describes memory of its connection."""

    def prepare(transport: Any) -> bytes:
        """
        Make the private data of the REP, instead of C{answer} of L{IRDMAProtocol}.

        @param transport: not connected yet, but its memory can be allocated. Closing it rejects the request.
        """

    def memoryLost() -> None:
        """
        Copy required contents of the memory, which is deregistered next.

        Called before C{connectionLost}, and when the connection fails before it is established.
        """
