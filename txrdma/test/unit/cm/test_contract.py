"""
The promises of connections that carry messages, kept by those of the communication manager.
"""

from __future__ import annotations

from collections.abc import Callable

from zope.interface import implementer

from txrdma.cm.connections.endpoints import IBClientEndpoint, USUAL
from txrdma.cm.connections.terms import MessagePeer
from txrdma.cm.interfaces import IRDMAProtocol
from txrdma.cm.messages import CMPath
from txrdma.messages import IMessageProtocolFactory
from txrdma.test.support.cm.messaging import MessagingCase, SERVICE
from txrdma.testing.contracts import MessageContract
from txrdma.testing.messages import NotingMessages


@implementer(IRDMAProtocol)
class _Noting:
    """A protocol of connections by the communication manager, around one that knows messages only."""

    answer = b""

    def __init__(self, within: NotingMessages) -> None:
        self.makeConnection = within.makeConnection
        self.connectionMade = within.connectionMade
        self.messageReceived = within.messageReceived
        self.connectionLost = within.connectionLost

    def writeReceived(self, length: int, immediate: int) -> None:
        raise AssertionError("nobody writes")

    def writeCompleted(self, identifier: int) -> None:
        raise AssertionError("nobody writes")

    def pathMigrated(self, path: CMPath) -> None:
        raise AssertionError("there is no other path")


@implementer(IMessageProtocolFactory)
class _Making:
    def __init__(self, protocol: _Noting) -> None:
        self._protocol = protocol

    def buildProtocol(self, peer: MessagePeer) -> _Noting:
        return self._protocol


class MessageContractTests(MessageContract, MessagingCase):
    """Two hosts on a simulated network."""

    def connectedBy(self, one: NotingMessages, other: NotingMessages) -> None:
        self.serve(_Making(_Noting(other)))
        endpoint = IBClientEndpoint(self.clock, SERVICE, self.path(), self.devices[0], USUAL)
        endpoint.connect(_Making(_Noting(one))).addErrback(lambda failure: self.fail(str(failure)))
        self.wait(lambda: one.transport and other.transport)

    def waitUntil(self, condition: Callable[[], object], seconds: float = 30.0) -> None:
        self.wait(condition, seconds)
