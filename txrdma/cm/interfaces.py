"""
Interfaces of connections that carry messages, as Twisted's have it for streams of bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zope.interface import Attribute, Interface

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IListeningPort, IPushProducer
from twisted.python.failure import Failure

if TYPE_CHECKING:  # string parsers are loaded at every look for plugins, and need none of these
    from txrdma.cm.connections.terms import Agreed, MessageAddress, MessagePeer
    from txrdma.cm.messages import CMPath
    from txrdma.iba.path import IBPath
    from txrdma.iba.types import RKey
    from txrdma.iba.verbs import Buffer, Segment
    from txrdma.interfaces import IMemoryRegion


class IMessageTransport(IPushProducer):
    """
    An established connection, as its protocol sees it.

    To pause it is to take no more messages: the peer may send as many as receives are posted, and waits then.
    """

    agreed: Agreed = Attribute("Terms that both ends have agreed on: depths, MTU, retries.")
    path: CMPath = Attribute("The path in use, as this end sees it.")
    alternate: CMPath | None = Attribute("The path to migrate to; None while there is none.")

    def sendMessage(data: Buffer, immediate: int | None = None) -> None:
        """
        Send a message; it waits in order while the peer has no room. After the end it is dropped.

        @param immediate: 32 bits that come with it.
        @raise txrdma.error.InvalidRequest: it is longer than C{agreed.messageBytes}.
        """

    def allocateMemory(length: int) -> IMemoryRegion:
        """Allocate memory that the peer may read and write while there is the connection, and no longer."""

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

    def registerProducer(producer: IPushProducer, streaming: bool) -> None:
        """Have a producer paused while more than C{agreed.sends} requests wait, and resumed after that."""

    def unregisterProducer() -> None:
        """Forget the producer; a connection that was waiting for it ends."""

    def loseConnection(privateData: bytes = b"") -> None:
        """
        End the connection by a DREQ, when all that was sent and written is in the peer's memory.

        The protocol hears of the end when the peer has answered, or has been asked often enough.
        """

    def abortConnection() -> None:
        """End the connection now, whatever waits."""

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


class IMessageProtocol(Interface):
    """A protocol of messages and one-sided writes, over one reliable connection."""

    answer: bytes = Attribute("Private data of the REP that accepts; of no use where the other end accepts.")

    def makeConnection(transport: IMessageTransport) -> None:
        """Take the transport, and call C{connectionMade}."""

    def connectionMade() -> None:
        """Begin: the connection is established."""

    def messageReceived(data: bytes, immediate: int | None) -> None:
        """
        Take a message of the peer. Its receive is posted again after this.

        @param immediate: None unless it came with 32 bits.
        """

    def writeReceived(length: int, immediate: int) -> None:
        """Note that the peer has written so many bytes into memory of this end, and what it says of it."""

    def writeCompleted(identifier: int) -> None:
        """Note that the peer's memory has what C{write} with this number has written."""

    def pathMigrated(path: CMPath) -> None:
        """Note that the connection has gone over to its alternate path, which is none any more."""

    def connectionLost(reason: Failure) -> None:
        """
        End: nothing comes any more.

        @param reason: C{ConnectionDone} where either end wanted it, and the peer has all that was sent here;
            else C{ConnectionLost} or C{ConnectionAborted}.
        """


class IPreparedProtocol(IMessageProtocol):
    """A protocol whose private data tell of memory, which belongs to its connection."""

    def prepare(transport: IMessageTransport) -> bytes:
        """
        Make the private data of the REP, instead of C{answer}.

        @param transport: is not connected yet; its memory can be allocated.
        """

    def memoryLost() -> None:
        """Take what is in the memory, which goes now, before C{connectionLost}."""


class IMessageProtocolFactory(Interface):
    """A maker of protocols, one for each connection."""

    def buildProtocol(peer: MessagePeer) -> IMessageProtocol | None:
        """
        Make the protocol of a connection. A passive end's is made when it is asked for.

        @return: None is to reject by C{CONSUMER_REJECT}.
        @raise txrdma.cm.errors.Rejection: reject, with a reason and private data.
        """


class IMessageClientEndpoint(Interface):
    """A place to connect to."""

    def connect(factory: IMessageProtocolFactory) -> Deferred[IMessageProtocol]:
        """
        Connect. The Deferred can be cancelled until it fires.

        @return: fires with the protocol, connected; fails with L{txrdma.cm.errors.Rejected}, with
            L{txrdma.cm.errors.PeerSilent}, or with another L{txrdma.error.RDMAError}.
        """


class IMessageServerEndpoint(Interface):
    """A place to listen at."""

    def listen(factory: IMessageProtocolFactory) -> Deferred[IListeningPort]:
        """
        Listen. The port's C{getHost} is a L{MessageAddress}.

        @return: fails with an L{txrdma.error.RDMAError}.
        """


class IMessageEndpointStringParser(Interface):
    """A plugin that makes endpoints of strings: C{"rdma:192.0.2.1:7471"}."""

    prefix: str = Attribute("The word before the first colon.")

    def parseMessageClient(reactor: object, *args: str, **kwargs: str) -> IMessageClientEndpoint:
        """
        Make a client's endpoint of the rest of the string.

        @raise ValueError: the string says something that has no meaning; names key and value.
        """

    def parseMessageServer(reactor: object, *args: str, **kwargs: str) -> IMessageServerEndpoint:
        """
        Make a server's endpoint of the rest of the string.

        @raise ValueError: as C{parseMessageClient}'s.
        """
