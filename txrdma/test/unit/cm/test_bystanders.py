"""A message application that raises affects only its own connection, with C{ib:} endpoints."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from zope.interface import implementer

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IListeningPort

from txrdma.cm.interfaces import IPreparedProtocol, IRDMAProtocol
from txrdma.test.support.cm.messaging import MessagingCase
from txrdma.testing.messagebystanders import (
    MessageApplication,
    MessageApplications,
    MessageBystanderContract,
)

_LENGTH = 64


class IEveryMethod(IPreparedProtocol, IRDMAProtocol):
    """All methods of protocols of RDMA connections."""


@implementer(IEveryMethod)
class PreparedApplication(MessageApplication):
    """An application with memory that its peer may write into."""

    def prepare(self, transport: Any) -> bytes:
        """Return the private data of the REP."""
        return b"prepared"

    def memoryLost(self) -> None:
        """Do nothing."""


class IBTests(MessageBystanderContract, MessagingCase):
    """C{ib:} endpoints, between two hosts with two ports each: both connections share an adapter."""

    slowBecause = "each callback of each end is tested on new connections"
    addresses = (("10.0.1.1", "10.0.2.1"), ("10.0.1.2", "10.0.2.2"))
    PROTOCOL = IEveryMethod
    APPLICATION = PreparedApplication
    METHODS = ("compareAndSwap", "fetchAndAdd", "loadAlternatePath", "send")
    NEVER_CALLED = {("prepare", False), ("alternatePathRequested", False)}  # see the contract

    def listenWith(self, factory: Any) -> IListeningPort:
        return self.serve(factory)

    def connectWith(self, factory: Any) -> Deferred[Any]:
        return self.connectBy(self.path(), factory)

    def waitUntil(self, condition: Callable[[], object]) -> None:
        self.wait(condition)

    def assertClean(self) -> None:
        self.assertNothingLeft()

    def exchange(self, client: Any, server: Any) -> None:
        """Exchange messages, write into memory of the peer, and migrate to the alternate path."""
        super().exchange(client, server)
        for here, there in ((client, server), (server, client)):
            if not (client.lost or server.lost):
                self.write(here, there)
        if not (client.lost or server.lost):
            self.migrate(client, server)

    def write(self, here: Any, there: Any) -> None:
        """Write into the peer's memory, with immediate data, unless the connection has ended."""
        writing = here.transport.write(there.transport.share(_LENGTH).name, bytes(_LENGTH), immediate=7)
        writing.addErrback(lambda _: None)  # if the connection has ended
        self.wait(lambda: there.writes and writing.called or here.lost or there.lost)

    def migrate(self, client: Any, server: Any) -> None:
        """Load another path, and cut the active one, unless the connection has ended."""
        loading = client.transport.loadAlternatePath(self.path(1))
        loading.addErrback(lambda _: None)  # if the connection has ended
        self.wait(lambda: loading.called)
        self.network.partition(*(each[0] for each in self.addresses))
        client.transport.sendMessage(b"by another path")
        self.wait(lambda: (client.paths and server.paths) or client.lost or server.lost)
        self.network.join(*(each[0] for each in self.addresses))

    def test_incompleteProtocol(self) -> None:
        """After the end of a protocol without C{connectionLost}, the reactor does not wait for it to stop."""
        transports: list[Any] = []

        class Incomplete:
            def makeConnection(self, transport: Any) -> None:
                transports.append(transport)

        server = MessageApplications(self.APPLICATION)
        port = self.listenWith(server)
        self.protocolOf(self.connectWith(MessageApplications(Incomplete)))
        self.waitUntil(lambda: server.built and server.built[0].isMade)
        server.built[0].transport.abortConnection()
        self.waitUntil(lambda: server.built[0].lost)
        port.stopListening()
        self.assertClean()
        self.assertEqual(len(self.flushLoggedErrors(AttributeError)), 1)
        self.assertIsNone(transports[0]._stopping)
