"""The server of a verification: streams, messages and measurements for remote clients."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

from zope.interface import implementer

from twisted.internet.defer import maybeDeferred
from twisted.internet.endpoints import serverFromString, TCP4ServerEndpoint
from twisted.internet.error import CannotListenError
from twisted.internet.interfaces import IHalfCloseableProtocol
from twisted.internet.protocol import connectionDone, Factory, Protocol
from twisted.python.failure import Failure

from txrdma import __version__
from txrdma.cm.connections.endpoints import RDMAServerEndpoint
from txrdma.cm.connections.protocol import RDMAProtocol
from txrdma.error import RDMAError
from txrdma.messages.protocol import MessageFactory
from txrdma.pingpong.link import TestSide
from txrdma.pingpong.session import PingpongServer
from txrdma.verbs.devices import openDevice
from txrdma.verify.subject import TestedPort
from txrdma.verify.transports import listening, serverDevice

PORT: Final = 18518
"""The default TCP port of C{txrdma verify --serve}; streams and measurements use any free ports."""

ECHO, SINK = b"E", b"S"
"""First byte of a client: echo what follows; or count as many bytes as the next 8 bytes say, then answer."""

MOST_CONNECTIONS: Final = 100
"""Maximum number of connections for data of all clients; each of them has one at a time."""


class _Service:
    """A connection of one client, which is not read while the client does not read."""

    transport: Any

    def __init__(self, connections: set[Any]) -> None:
        """@param connections: all open connections for data, to which this one adds itself."""
        self._connections = connections

    def connectionMade(self) -> None:
        """Begin to read, unless there are too many connections."""
        if len(self._connections) >= MOST_CONNECTIONS:
            self.transport.abortConnection()
            return
        self._connections.add(self)
        self.transport.registerProducer(self.transport, True)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """Make room for another connection."""
        self._connections.discard(self)


@implementer(IHalfCloseableProtocol)
class StreamService(_Service, Protocol):
    """Echoes or counts the data of one client."""

    _mode = b""
    _left = 0
    _head = b""

    def dataReceived(self, data: bytes) -> None:
        if not self._mode:
            self._mode, data = data[:1], data[1:]
        if self._mode == ECHO:
            self.transport.write(data)
        else:
            self._count(data)

    def _count(self, data: bytes) -> None:
        if len(self._head) < 8:
            self._head, data = self._head + data[: 8 - len(self._head)], data[8 - len(self._head) :]
            if len(self._head) < 8:
                return
            self._left = int.from_bytes(self._head, "big")
        self._left -= len(data)
        if self._left <= 0:
            self.transport.write(SINK)
            self._head = b""

    def readConnectionLost(self) -> None:
        """The client has written everything: end the connection after the last bytes of the echo."""
        self.transport.unregisterProducer()
        self.transport.loseConnection()

    def writeConnectionLost(self) -> None:
        """Do nothing: the echo has ended."""


class MessageService(_Service, RDMAProtocol):
    """Echoes the messages of one client."""

    def messageReceived(self, data: bytes, immediate: int | None) -> None:
        self.transport.sendMessage(data, immediate)


class _Control(Protocol):
    """Sends a client the offer, as a line of JSON."""

    def __init__(self, offer: dict[str, Any]) -> None:
        self._offer = offer

    def connectionMade(self) -> None:
        assert self.transport is not None
        self.transport.write(json.dumps(self._offer).encode() + b"\n")
        self.transport.loseConnection()


class Serving:
    """
    The listening ports of a server.

    @ivar offer: kinds of endpoints with their ports, and the address of the RDMA port.
    """

    def __init__(self, reactor: Any, end: TestedPort, address: str) -> None:
        self._reactor = reactor
        self._end = end
        self._address = address
        self._ports: list[Any] = []
        self._connections: set[Any] = set()
        self.offer: dict[str, Any] = {"version": __version__, "address": end.address, "missing": {}}

    async def start(self, port: int) -> int:
        """
        Listen, and return the TCP port of the control connection. Record kinds that cannot listen.

        @raise CannotListenError: the control connection's port is in use.
        """
        reactor, end = self._reactor, self._end
        for kind, description in listening(end, self._address).items():
            streams = serverFromString(reactor, description)
            await self._listen(kind, streams, _factory(lambda: StreamService(self._connections)))
        if end.address:
            endpoint = RDMAServerEndpoint(reactor, 0, serverDevice(end))
            await self._listen("rdma", endpoint, MessageFactory(lambda: MessageService(self._connections)))
        side = TestSide(reactor, lambda _: openDevice(reactor, end.device), port=end.port)
        await self._listen("pingpong", self._tcp(0), PingpongServer(side))
        try:
            control = await self._tcp(port).listen(_factory(lambda: _Control(self.offer)))
        except CannotListenError:
            await self.stop()
            raise
        self._ports.append(control)
        return int(control.getHost().port)

    def _tcp(self, port: int) -> TCP4ServerEndpoint:
        return TCP4ServerEndpoint(self._reactor, port, interface=self._address)

    async def _listen(self, kind: str, endpoint: Any, factory: Any) -> None:
        try:
            port = await endpoint.listen(factory)
        except (CannotListenError, RDMAError) as error:
            self.offer["missing"][kind] = str(error)
            return
        self._ports.append(port)
        self.offer[kind] = port.getHost().port

    async def stop(self) -> None:
        """Close all ports; connections end with the process."""
        ports, self._ports = self._ports, []
        for port in reversed(ports):
            await maybeDeferred(port.stopListening)


def _factory(build: Callable[[], Protocol]) -> Factory:
    factory = Factory()
    factory.noisy = False
    factory.buildProtocol = lambda addr: build()  # type: ignore[method-assign]  # as Factory.forProtocol
    return factory
