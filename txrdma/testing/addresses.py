"""The types of the addresses that ports, transports and factories get, as a mixin for test cases."""

from __future__ import annotations

from random import randrange
from typing import Any

from zope.interface.verify import verifyObject

from twisted.internet import reactor as theReactor
from twisted.internet.address import IPv4Address
from twisted.internet.endpoints import clientFromString, serverFromString
from twisted.internet.interfaces import IAddress
from twisted.internet.protocol import Factory

from txrdma.messages.address import MessageAddress
from txrdma.testing.protocols import MessageRecorder, StateRecorder
from txrdma.testing.reactors import waitUntil

reactor: Any = theReactor


class AddressContract:
    """
    Message connections have L{MessageAddress}es; streams have Twisted's TCP addresses.

    @cvar LISTEN: the server's endpoint string, with C{{there}} for its address.
    @cvar CONNECT: the client's endpoint string, with C{{there}} and C{{port}}.
    @cvar HAS_MESSAGES: whether they are endpoints of messages.
    """

    LISTEN: str
    CONNECT: str
    HAS_MESSAGES = False

    def setUp(self: Any) -> None:
        """Choose a random loopback address, in order not to collide with other tests."""
        self.there = ".".join(map(str, (127, *(randrange(2, 250) for _ in range(3)))))

    def server(self: Any) -> Any:
        """Return the server's endpoint."""
        return serverFromString(reactor, self.LISTEN.format(there=self.there))

    def client(self: Any, port: int) -> Any:
        """Return the client's endpoint."""
        return clientFromString(reactor, self.CONNECT.format(there=self.there, port=port))

    async def test_addresses(self: Any) -> None:
        """Ports, transports and factories get addresses of one type, and both ends have the same ones."""
        built: list[Any] = []
        ends: list[Any] = []

        def buildProtocol(address: Any) -> Any:
            built.append(address)
            ends.append(MessageRecorder() if self.HAS_MESSAGES else StateRecorder())
            return ends[-1]

        factory: Any = Factory()
        factory.buildProtocol = buildProtocol
        port = await self.server().listen(factory)
        self.addCleanup(port.stopListening)
        await self.client(port.getHost().port).connect(factory)
        await waitUntil(reactor, lambda: len(ends) == 2 and all(each.transport for each in ends), 20.0)
        transports = [each.transport for each in ends]
        addresses = [(each.getHost(), each.getPeer()) for each in transports]
        self.assertEqual(addresses[0], addresses[1][::-1])
        self.assertEqual(built, [peer for _, peer in addresses])
        self.assertIn(port.getHost().port, [host.port for host, _ in addresses])
        kind = MessageAddress if self.HAS_MESSAGES else IPv4Address
        for each in (port.getHost(), *built, *addresses[0], *addresses[1]):
            self.assertIs(type(each), kind)
            verifyObject(IAddress, each)
        for each in transports:
            each.abortConnection()
        await waitUntil(
            reactor, lambda: all(each.ends if self.HAS_MESSAGES else each.lost for each in ends), 20.0
        )
