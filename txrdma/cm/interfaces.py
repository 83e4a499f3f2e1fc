"""
Interfaces of connections by the communication manager: L{txrdma.messages}, with what RDMA adds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from zope.interface import Attribute, Interface

from twisted.internet.defer import Deferred

from txrdma.messages.interfaces import IMessageProtocol, IMessageTransport

if TYPE_CHECKING:
    from txrdma.cm.core.alternate import PathCheck
    from txrdma.cm.core.events import Event
    from txrdma.cm.layouts.messages import APStatus, CMPath, RejectReason, REP, REQ
    from txrdma.cm.terms import Agreed, MessageAddress, MessagePeer
    from txrdma.iba.path import IBPath
    from txrdma.iba.types import RKey
    from txrdma.iba.verbs import Buffer, Segment
    from txrdma.interfaces import IMemoryRegion, IVerbsDevice


class IManagedConnection(Interface):
    """A connection of a communication manager, ours or the kernel's: its messages, not its queue pair."""

    managedBy: str = Attribute("The manager of the connection: txrdma, or librdmacm.")
    request: REQ = Attribute("The REQ of the connection.")
    reply: REP | None = Attribute("The REP of the connection; None before.")
    state: str = Attribute("The state by the specification's name: REQ_SENT, ESTABLISHED...")
    primary: CMPath = Attribute("The path in use, as this end sees it.")
    alternate: CMPath | None = Attribute("The path to migrate to; None while there is none.")

    def setHandler(
        handler: Callable[[IManagedConnection, Event], None],
        checkMigration: Callable[[], None] = lambda: None,
    ) -> None:
        """
        Set the function that is called with each event from now on.

        @param checkMigration: called before a LAP is handled, to report a migration of the queue pair.
        """

    def startingPSN() -> int:
        """The PSN that the peer of a passive end is to begin with."""

    def accept(reply: REP) -> None:
        """Answer a REQ, with a queue pair that is ready to send."""

    def ready(privateData: bytes = b"") -> None:
        """Answer a REP: the queue pair is ready to send."""

    def reject(reason: RejectReason = ..., information: bytes = b"", privateData: bytes = b"") -> None:
        """Answer a REQ or a REP by a REJ."""

    def disconnect(privateData: bytes = b"") -> None:
        """End the connection, whatever its state, or answer the peer that has ended it."""

    def communicating() -> None:
        """Note that the queue pair has received data, as good as an RTU that may be lost."""

    def migrated() -> None:
        """Note that the queue pair has migrated."""

    def loadAlternatePath(path: IBPath | CMPath, privateData: bytes = b"") -> Deferred[CMPath]:
        """Have the peer accept an alternate path."""

    def replyAlternatePath(transactionID: int, status: APStatus = ..., information: bytes = b"") -> None:
        """Answer a peer that has an alternate path."""


class IConnectionManager(Interface):
    """A manager of connections: of our own, on management datagrams, or the kernel's."""

    counters: Counter[str] = Attribute("Numbers of messages, by direction and kind.")

    def listen(
        serviceID: int,
        handler: Callable[[IManagedConnection, Event], None],
        *,
        backlog: int = ...,
        checkPath: PathCheck = ...,
    ) -> Callable[[], None]:
        """Have REQs for a service reported; call the answer to listen no more."""

    def connect(
        request: REQ,
        path: IBPath,
        handler: Callable[[IManagedConnection, Event], None],
        *,
        checkPath: PathCheck = ...,
    ) -> IManagedConnection:
        """Ask a peer for a connection by a REQ."""

    def close() -> None:
        """Forget all connections, and handle no more messages."""


class IRDMATransport(IMessageTransport):
    """
    An established connection, as its protocol sees it: messages, and the memory of the peer.

    To pause it is to take no more messages: the peer may send as many as receives are posted, and waits then.
    """

    agreed: Agreed = Attribute("Terms that both ends have agreed on: depths, MTU, retries.")
    path: CMPath = Attribute("The path in use, as this end sees it.")
    alternate: CMPath | None = Attribute("The path to migrate to; None while there is none.")
    managedBy: str = Attribute("The manager of the connection: txrdma, or librdmacm.")
    route: str = Attribute("The way of the data, as the device calls it; empty after the end.")
    device: IVerbsDevice = Attribute("The device of the connection.")

    def sendMessage(data: Buffer, immediate: int | None = None) -> None:
        """
        Send a message; it waits in order while the peer has no room. After the end it is dropped.

        @param immediate: 32 bits that come with it.
        @raise txrdma.error.InvalidRequest: it is longer than C{agreed.messageBytes}.
        """

    def allocateMemory(length: int) -> IMemoryRegion:
        """Allocate memory that the peer may read and write while there is the connection, and no longer."""

    def freeMemory(region: IMemoryRegion) -> None:
        """
        Let go of memory that C{allocateMemory} gave, before the connection ends.

        The peer's requests for it fail from now on, by which the connection ends. Twice is fine.
        """

    def write(segment: Segment, remoteAddress: int, rkey: RKey, immediate: int | None = None) -> int:
        """
        Write into the peer's memory, after all that was sent and written before.

        @param segment: registered memory of this end, unchanged until C{writeCompleted}.
        @param immediate: 32 bits by which the peer's protocol is told, as C{writeReceived}; a write of no
            bytes has none where credits are counted.
        @return: a number that comes back in C{writeCompleted}; 0 after the end, where there is none.
        @raise txrdma.error.InvalidRequest: no bytes, with immediate data, where credits are counted.
        """

    def read(segment: Segment, remoteAddress: int, rkey: RKey) -> Deferred[None]:
        """
        Read from the peer's memory. To cancel the Deferred is to withdraw or to ignore it.

        @return: fires when C{segment} holds the bytes; fails with the reason when the connection ends before.
        @raise txrdma.error.InvalidRequest: the peer takes no reads.
        """

    def loseConnection(privateData: bytes = b"") -> None:
        """
        End the connection by a DREQ, when all that was sent and written is in the peer's memory.

        The protocol hears of the end when the peer has answered, or has been asked often enough.

        @param privateData: for the peer, 220 bytes at most.
        @raise txrdma.error.InvalidRequest: there is too much private data.
        """

    def loadAlternatePath(path: IBPath | CMPath) -> Deferred[CMPath]:
        """
        Have both ends ready to migrate to another path when the one in use fails.

        @return: fires with the path when both queue pairs are ready for it; for errors see
            L{CMConnection.loadAlternatePath<txrdma.cm.manager.CMConnection.loadAlternatePath>}.
        @raise txrdma.error.InvalidRequest: the queue pair's route has no alternate paths, as shared memory.
        """

    def getHost() -> MessageAddress:
        """The address of this end."""

    def getPeer() -> MessagePeer:
        """The peer, with the private data that it sent."""


class IRDMAProtocol(IMessageProtocol):
    """A protocol of messages and one-sided writes, over one reliable connection."""

    answer: bytes = Attribute("Private data of the REP that accepts; of no use where the other end accepts.")

    def writeReceived(length: int, immediate: int) -> None:
        """Note that the peer has written so many bytes into memory of this end, and what it says of it."""

    def writeCompleted(identifier: int) -> None:
        """Note that the peer's memory has what C{write} with this number has written."""

    def pathMigrated(path: CMPath) -> None:
        """Note that the connection has gone over to its alternate path, which is none any more."""


class IPreparedProtocol(IRDMAProtocol):
    """A protocol whose private data tell of memory, which belongs to its connection."""

    def prepare(transport: IRDMATransport) -> bytes:
        """
        Make the private data of the REP, instead of C{answer}.

        @param transport: is not connected yet; its memory can be allocated.
        """

    def memoryLost() -> None:
        """
        Copy what is needed of the memory, which is deregistered next.

        Called before C{connectionLost}, and when the connection fails before it is established.
        """
