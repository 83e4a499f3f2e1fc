"""
Interfaces of connections that carry messages, as Twisted's have it for streams of bytes.

They are what connections by the communication manager and those of the byte transfer layer have in common: a
protocol that needs no more runs over both.
"""

from __future__ import annotations

from typing import Any, TYPE_CHECKING

from zope.interface import Attribute, Interface

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IAddress, IListeningPort, IPushProducer
from twisted.python.failure import Failure

if TYPE_CHECKING:  # string parsers are loaded at every look for plugins, and need none of these
    from txrdma.iba.verbs import Buffer


class IMessageTransport(IPushProducer):
    """
    An established connection, as its protocol sees it.

    To pause it is to take no more messages: the peer may send as many as there is room for, and waits then.
    """

    def sendMessage(data: Buffer, immediate: int | None = None) -> None:
        """
        Send a message; it waits in order while the peer has no room. After the end it is dropped.

        @param immediate: 32 bits that come with it.
        @raise txrdma.error.InvalidRequest: it is longer than the connection's messages may be.
        """

    def registerProducer(producer: IPushProducer, streaming: bool) -> None:
        """Have a producer paused while too much waits to be sent, and resumed after that."""

    def unregisterProducer() -> None:
        """Forget the producer; a connection that was waiting for it ends."""

    def loseConnection() -> None:
        """End the connection in order, when the peer has all that was sent."""

    def abortConnection() -> None:
        """End the connection now, whatever waits."""

    def getHost() -> IAddress:
        """The address of this end."""

    def getPeer() -> IAddress:
        """The address of the peer."""


class IMessageProtocol(Interface):
    """A protocol of messages, over one reliable connection."""

    def makeConnection(transport: Any) -> None:  # each kind of connection has a transport that offers more
        """Take the L{IMessageTransport}, and call C{connectionMade}."""

    def connectionMade() -> None:
        """Begin: the connection is established."""

    def messageReceived(data: bytes, immediate: int | None) -> None:
        """
        Take a message of the peer; they come in the order in which they were sent.

        @param immediate: None unless it came with 32 bits.
        """

    def connectionLost(reason: Failure) -> None:
        """
        End: nothing comes any more.

        @param reason: C{ConnectionDone} where either end wanted it, and the peer has all that was sent here;
            else C{ConnectionLost} or C{ConnectionAborted}.
        """


class IMessageProtocolFactory(Interface):
    """A maker of protocols, one for each connection."""

    def buildProtocol(peer: Any) -> Any:  # each kind of connection has peers and protocols of its own
        """
        Make the protocol of a connection. A passive end's may be made when it is asked for.

        @param peer: its address.
        @return: an L{IMessageProtocol}; None is to reject the connection.
        """


class IMessageClientEndpoint(Interface):
    """A place to connect to."""

    def connect(factory: IMessageProtocolFactory) -> Deferred[Any]:  # of what the factory makes
        """
        Connect. The Deferred can be cancelled until it fires.

        @return: fires with the protocol, connected; fails with an L{txrdma.error.RDMAError}.
        """


class IMessageServerEndpoint(Interface):
    """A place to listen at."""

    def listen(factory: IMessageProtocolFactory) -> Deferred[IListeningPort]:
        """
        Listen. The port's C{getHost} is the address that is listened to.

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
