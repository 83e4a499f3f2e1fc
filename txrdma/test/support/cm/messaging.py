"""Base class for tests of message connections between two simulated hosts."""

from __future__ import annotations

from functools import partial
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IListeningPort
from twisted.trial.unittest import SynchronousTestCase

from txrdma.cm.connections import adapter as adapters
from txrdma.cm.connections.endpoints import (
    IBClientEndpoint,
    IBServerEndpoint,
    RDMAClientEndpoint,
    RDMAServerEndpoint,
    USUAL,
)
from txrdma.cm.terms import Terms
from txrdma.iba.path import IBPath
from txrdma.iba.types import DEFAULT_PKEY, GID, PKey
from txrdma.mad.ports import verbsport
from txrdma.mad.resolvers import sourceGID
from txrdma.messages.protocol import MessageFactory
from txrdma.sim.network import SimulatedNetwork
from txrdma.soft.device import SoftDevice
from txrdma.testing.protocols import MessageRecorder
from txrdma.testing.reactors import ReactorClock, SteppedTime

SERVICE = 0x1000000000000042
PORT = 7471


class MessagingCase(SteppedTime, SynchronousTestCase):
    """
    Two hosts on a simulated network, with one address each unless a subclass has more.

    @cvar receives: receives of queue pair 1. With the default, they take half of the time of a connection.
    """

    receives = 64
    clockClass: type[ReactorClock] = ReactorClock
    addresses: tuple[tuple[str, ...], ...] = (("10.0.1.1",), ("10.0.1.2",))

    def setUp(self) -> None:
        self.patch(verbsport, "RECEIVES", self.receives)
        # The kernel does not know the routes of a simulated network.
        self.patch(adapters, "sourceGID", partial(sourceGID, sourceAddress=lambda target: None))
        self.createHosts()

    def createHosts(self) -> None:
        """Create the hosts, with a clock and a network of their own."""
        self.clock = self.clockClass()
        self.network = SimulatedNetwork(self.clock)
        self.devices: list[SoftDevice] = [self.network.device(*each) for each in self.addresses]
        for device in self.devices:
            self.addCleanup(device.close)
        self.served: list[MessageRecorder] = []
        self.listeningPorts: list[IListeningPort] = []

    def path(self, number: int = 0, life: int = 10, pkey: int = DEFAULT_PKEY) -> IBPath:
        """Return the path between the addresses of this number, from the client to the server."""
        source, destination = (GID.fromIP(each[number]) for each in self.addresses)
        return IBPath(sgid=source, dgid=destination, hopLimit=64, packetLifeTime=life, pkey=PKey(pkey))

    def ends(self, serviceID: int = SERVICE, terms: Terms = USUAL) -> IBServerEndpoint:
        """Return the endpoint of a service at the second host."""
        return IBServerEndpoint(self.clock, serviceID, self.devices[1], terms)

    def serve(self, factory: Any = None, terms: Terms = USUAL, serviceID: int = SERVICE) -> IListeningPort:
        """Listen to the service at the second host."""
        return self._listen(self.ends(serviceID, terms), factory)

    def made(self, answer: bytes = b"") -> MessageRecorder:
        """Create a protocol of the server, and add it to C{served}."""
        self.served.append(MessageRecorder(answer))
        return self.served[-1]

    def ask(self, terms: Terms = USUAL, privateData: bytes = b"", **path: int) -> Deferred[Any]:
        return self.connectBy(self.path(**path), terms=terms, privateData=privateData)

    def connectBy(self, path: object, factory: Any = None, **more: Any) -> Deferred[Any]:
        """Connect to the service by a path, or to the port that a resolver finds."""
        options: dict[str, Any] = {"serviceID": SERVICE, "device": self.devices[0], "path": path, **more}
        endpoint = IBClientEndpoint(self.clock, **options)
        return endpoint.connect(factory or MessageFactory(MessageRecorder))

    def listenAt(self, factory: Any = None, kind: Any = RDMAServerEndpoint, **more: Any) -> Any:
        """Listen to a port of the second host."""
        endpoint = kind(self.clock, **{"port": PORT, "device": self.devices[1], **more})
        return self._listen(endpoint, factory)

    def _listen(self, endpoint: Any, factory: Any) -> IListeningPort:
        self.listeningPorts.append(
            self.successResultOf(endpoint.listen(factory or MessageFactory(self.made)))
        )
        return self.listeningPorts[-1]

    def connectTo(self, factory: Any = None, kind: Any = RDMAClientEndpoint, **more: Any) -> Deferred[Any]:
        """Connect the first host to a port of the second one."""
        options = {"host": self.addresses[1][0], "port": PORT, "device": self.devices[0], **more}
        connecting: Deferred[Any] = kind(self.clock, **options).connect(
            factory or MessageFactory(MessageRecorder)
        )
        return connecting

    def connected(
        self, terms: Terms = USUAL, serverTerms: Terms = USUAL
    ) -> tuple[MessageRecorder, MessageRecorder]:
        """Return two connected protocols: the client's and the server's."""
        port = self.serve(terms=serverTerms)
        client = self.result(self.ask(terms))
        self.wait(lambda: self.served[-1].isMade)
        port.stopListening()
        return client, self.served[-1]

    def closed(self, client: MessageRecorder, server: MessageRecorder, seconds: float = 30.0) -> None:
        """Close a connection at the client, and wait for both ends."""
        client.transport.loseConnection()
        self.wait(lambda: client.lost and server.lost, seconds)

    def again(self) -> Deferred[Any]:
        """Open another connection."""
        port = self.serve()
        asked = self.ask()
        asked.addCallback(lambda client: [port.stopListening(), client][1])
        return asked

    def assertNothingLeft(self, seconds: float = 60.0) -> None:
        """Stop listening; assert that adapters, queue pairs, memory and timers are released in this time."""
        for port in self.listeningPorts:
            port.stopListening()
        here = [key for key in adapters._adapters if key[0] is self.clock]
        self.wait(lambda: not any(key in adapters._adapters for key in here), seconds)
        for device in self.devices:
            self.assertEqual((len(device._queuePairs), len(device.domains), len(device._numbers)), (0, 0, 0))
            self.assertEqual((len(device._completionQueues), len(device._channels)), (0, 0))
        self.assertEqual(self.clock.readers, [])
