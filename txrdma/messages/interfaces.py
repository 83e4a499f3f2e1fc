"""
Interfaces of connections that carry messages, modelled on Twisted's for streams of bytes.

Connections of the communication manager (C{rdma:}, C{ib:}) and of the byte transfer layer (C{btl:}) provide
them. A protocol that uses only these interfaces runs over both.
"""

from __future__ import annotations

from typing import Any, TYPE_CHECKING

from zope.interface import Attribute, Interface

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IListeningPort, IPushProducer
from twisted.python.failure import Failure

from txrdma.messages.address import MessageAddress

if TYPE_CHECKING:  # every search for plugins imports this module, without need of these
    from txrdma.kit.buffers import AnyBuffer


class IMessageTransport(IPushProducer):
    """
    The transport of an established message connection.

    C{pauseProducing} stops C{messageReceived}. The peer may then send a limited number of messages or bytes.
    """

    def sendMessage(data: AnyBuffer, immediate: int | None = None) -> None:
        """
        Send a message. It is queued until the peer can receive it, and dropped if the connection has ended.

        @param data: its bytes are sent; it has to be contiguous.
        @param immediate: 32 bits that are delivered with the message.
        @raise txrdma.error.InvalidRequest: the message is too long for this connection or not contiguous, or
            the immediate data has more than 32 bits.
        """

    def registerProducer(producer: IPushProducer, streaming: bool) -> None:
        """
        Register a producer, which is paused while too much is queued.

        @raise RuntimeError: there is a producer already.
        """

    def unregisterProducer() -> None:
        """Unregister the producer; after C{loseConnection}, the connection can then close."""

    def loseConnection() -> None:
        """Close the connection when the peer has received all messages and no producer is registered."""

    def abortConnection() -> None:
        """Close the connection at once."""

    def getHost() -> MessageAddress:
        """The local address, with C{host} and C{port}; equal to that of C{getPeer} at the peer."""

    def getPeer() -> MessageAddress:
        """The address of the peer, of the same type."""


class ISharedMemory(Interface):
    """Memory of this end that the peer of one connection may read and write, until C{close} or the end."""

    name: bytes = Attribute("16 bytes by which the peer accesses the memory: send them in any message.")
    view: memoryview = Attribute("The bytes. What the peer writes appears here without an event.")

    def close() -> None:
        """
        End the access of the peer, and release a shared buffer. Idempotent.

        A buffer that another object has taken from C{view}, such as a NumPy array, is released with that
        object.

        A later request of the peer fails, which may end the connection.
        """


class IRemoteMemory(Interface):
    """
    A transport whose ends read and write each other's memory.

    If the peer does not share that memory any more, Deferreds fail with L{txrdma.error.ProtectionError}, and
    the connection ends, as reliable connections do; those of C{btl:} fail with
    L{MessageFailed<txrdma.btl.errors.MessageFailed>}, and the connection stays. They also fail if the
    connection ends before. They can be cancelled; a request that was sent is still executed.
    """

    def share(memory: int | AnyBuffer) -> ISharedMemory:
        """
        Let the peer read and write memory.

        @param memory: the number of bytes to allocate, which are zeros; or a writable, contiguous buffer
            (bytearray, mmap, NumPy array), which is used without copying and can be resized or closed again
            after L{ISharedMemory.close}, or after the end of the connection.
        @raise txrdma.error.InvalidRequest: the buffer is read-only or not contiguous, the length is not from
            1 byte to 4 GiB - 1, or the connection has ended.
        @raise txrdma.error.ResourceExhausted: there is not enough memory.
        """

    def read(name: bytes, length: int, offset: int = 0) -> Deferred[bytes]:
        """
        Read from memory that the peer shares.

        @raise txrdma.error.InvalidRequest: the range is not within the memory, or the peer accepts no reads.
        @raise TypeError: the offset or the length is not an integer; the other methods raise it, too.
        """

    def write(name: bytes, data: AnyBuffer, offset: int = 0) -> Deferred[None]:
        """
        Write to memory that the peer shares.

        @param data: must not change before the Deferred fires.
        @return: fires when all bytes are in the peer's memory.
        @raise txrdma.error.InvalidRequest: the range is not within the memory.
        """


class IAtomicMemory(IRemoteMemory):
    """
    A transport whose ends also execute atomic operations on numbers in each other's memory.

    A number has 64 bits, in the byte order of the host that shares the memory, at an address that is
    divisible by 8; memory that C{share} has allocated begins at such an address.
    """

    def compareAndSwap(name: bytes, expected: int, new: int, offset: int = 0) -> Deferred[int]:
        """
        Replace a number if it has the expected value.

        @return: fires with the previous value.
        @raise txrdma.error.InvalidRequest: the number is not within the memory or not aligned, or an end does
            not support atomic operations.
        """

    def fetchAndAdd(name: bytes, amount: int, offset: int = 0) -> Deferred[int]:
        """
        Add to a number, modulo 2 to the 64th.

        @param amount: may be negative.
        @return: fires with the previous value.
        @raise txrdma.error.InvalidRequest: as for L{compareAndSwap}.
        """


class IMessageProtocol(Interface):
    """A protocol for the messages of one reliable connection."""

    def makeConnection(transport: Any) -> None:  # each kind of connection has a transport that offers more
        """Set the L{IMessageTransport}, and call C{connectionMade}."""

    def connectionMade() -> None:
        """Called when the connection is established."""

    def messageReceived(data: bytes, immediate: int | None) -> None:
        """
        Called with each message of the peer, in the order in which they were sent.

        @param immediate: 32 bits that the peer sent with the message, or None.
        """

    def connectionLost(reason: Failure) -> None:
        """
        Called once, when the connection has ended.

        @param reason: C{ConnectionDone} if either end closed in order, and the peer has received everything
            that this end sent; else C{ConnectionLost} or C{ConnectionAborted}.
        """


class IMessageProtocolFactory(Interface):
    """Makes a protocol for each connection, as Twisted's factories do."""

    def buildProtocol(peer: Any) -> Any:  # types depend on the kind of connection
        """
        Make the protocol of a connection. A server may call this before the connection is established.

        @param peer: the address of the peer.
        @return: an L{IMessageProtocol}, or None to reject the connection.
        """


class IMessageClientEndpoint(Interface):
    """Connects to a server."""

    def connect(factory: IMessageProtocolFactory) -> Deferred[Any]:  # of the factory's protocol
        """
        Connect.

        @return: fires with the connected protocol; fails with an L{txrdma.error.RDMAError}. It can be
            cancelled.
        """


class IMessageServerEndpoint(Interface):
    """Listens for clients."""

    def listen(factory: IMessageProtocolFactory) -> Deferred[IListeningPort]:
        """
        Listen.

        @return: fires with the port; fails with C{CannotListenError}, as over TCP.
        """
