"""
A communication manager, one function of which raises an exception: attempts and requests end, connections
that were open before work on, and nothing is left in its tables.
"""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

from twisted.internet.defer import CancelledError

from txrdma.cm import manager as managers
from txrdma.cm.claims import ServiceClaims
from txrdma.cm.connection import CMConnection
from txrdma.cm.connections.datagrams import DatagramClientEndpoint, DatagramServerEndpoint
from txrdma.cm.connections.endpoints import RDMAServerEndpoint
from txrdma.cm.core import dispatcher
from txrdma.cm.core.closing import Closing
from txrdma.cm.core.connection import ConnectionCore
from txrdma.cm.core.exchange import ExchangeCore
from txrdma.cm.core.opening import Opening
from txrdma.cm.core.sidr import Resolution
from txrdma.cm.manager import ConnectionManager
from txrdma.cm.rdmacm import manager as kernels
from txrdma.cm.rdmacm import messages
from txrdma.cm.rdmacm.manager import KernelManagedConnection, KernelManager
from txrdma.error import DeviceUnavailable
from txrdma.messages.protocol import MessageFactory
from txrdma.test.support.cm.interrupted import InterruptionCase
from txrdma.test.support.cm.librdmacm import FakeChannel, useFakeKernel
from txrdma.test.support.cm.messaging import PORT, SERVICE
from txrdma.test.unit.cm.test_datagrams import DatagramRecorder


class InterruptionTests(InterruptionCase):
    """Connections and datagram services of txrdma's own managers."""

    slowBecause = "it plays connections for each function"
    OWNERS = (
        *(ConnectionManager, managers, ServiceClaims, CMConnection),
        *(dispatcher.Dispatcher, dispatcher.Managed, dispatcher.Listener, dispatcher),
        *(ConnectionCore, Opening, Closing, ExchangeCore, Resolution),
    )
    # They handle exceptions of others, or release what they are called for.
    TRIVIAL = ("_abandoning", "_contain", "_expire", "_expired", "_turn", "unlisten")

    def others(self, manager: Any) -> list[Any]:
        """Return what a manager has in its tables, apart from one connection."""
        core = manager._core
        found: list[Any] = [each for each in (core._connections, manager._connections) if len(each) > 1]
        found += [each for each in (core._byPeer, core._byQP) if len(each) > 1]
        found += filter(None, (core._resolutions, core._sidrRequests, core._peerToPeer, core._packets))
        return [*found, *filter(None, (core._events, core._freed, manager._resolving, manager._peerClaims))]

    def losses(self) -> None:
        """Connect twice, with a network that loses the first messages."""
        (port,) = self.begun(self.ends().listen, MessageFactory(self.made))
        self.network.partition(*(each[0] for each in self.addresses))
        found = [self.begun(self.ask) for _ in range(2)]
        end = self.clock.seconds() + 1.0
        self.until(lambda: self.clock.seconds() > end, "the time does not pass")
        self.network.join(*(each[0] for each in self.addresses))
        self.until(lambda: all(found), "an attempt hangs")
        if found == [[None], [None]] and self.interruptions.hasRaised and port is not None:
            self.wrong.append("both attempts failed")
        for client in [client for each in found for client in each]:
            self.converse(client)
        if port is not None:
            self.do(port.stopListening)

    def resolutions(self) -> None:
        """Find a datagram service."""
        endpoint = DatagramServerEndpoint(self.clock, PORT, self.devices[1])
        (port,) = self.begun(endpoint.listen, MessageFactory(DatagramRecorder))
        found = self.begun(self.connectTo, MessageFactory(DatagramRecorder), DatagramClientEndpoint)
        self.until(lambda: found, "the resolution hangs")
        for client in found:
            if client is not None:
                self.do(client.transport.loseConnection)
        if port is not None:
            self.do(port.stopListening)

    def test_connections(self) -> None:
        """A connection is opened and closed."""
        self.playEach(self.connections, 2)

    def test_losses(self) -> None:
        """Two connections are opened, by retransmitted messages."""
        self.playEach(self.losses, 1)

    def test_exit(self) -> None:
        """The timer is set although a handler has raised what is no C{Exception}, which the reactor logs."""
        client, server = self.connected()
        manager = client.transport.adapter.localManager
        self.network.partition(*(each[0] for each in self.addresses))
        client.transport.loseConnection()
        self.until(lambda: manager._timer.isPending, "no DREQ was sent")
        manager._timer.stop()

        def handleEvents(_manager: ConnectionManager) -> None:
            raise SystemExit("a test's")

        patcher = self.patch(ConnectionManager, "_handleEvents", handleEvents)
        self.assertRaises(SystemExit, manager._turn)
        patcher.restore()
        self.assertTrue(manager._timer.isPending)
        self.network.join(*(each[0] for each in self.addresses))
        self.closed(client, server)

    def resolving(self) -> tuple[ConnectionManager, Any]:
        """Send a SIDR_REQ, with another connection open; return the manager and the Deferred."""
        client, _ = self.connected()
        manager = client.transport.adapter.localManager
        return manager, manager.resolve(SERVICE, self.path())

    def test_cancelledResolution(self) -> None:
        """The manager forgets a resolution whose core raises when it is cancelled."""
        manager, resolving = self.resolving()
        self.patch(Resolution, "cancel", Mock(side_effect=ZeroDivisionError("a test's")))
        resolving.cancel()
        self.failureResultOf(resolving, CancelledError)
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)
        self.assertEqual((manager._core._resolutions, manager._resolving), ({}, {}))
        self.assertEqual(len(manager._connections), 1)

    def test_close(self) -> None:
        """A manager that closes ends its requests and connections, although a step raises."""
        manager, resolving = self.resolving()
        self.patch(ServiceClaims, "close", Mock(side_effect=ZeroDivisionError("a test's")))
        self.assertRaises(ZeroDivisionError, manager.close)
        self.failureResultOf(resolving, DeviceUnavailable)
        self.assertEqual((len(manager._core), manager._connections), (0, {}))

    def test_resolutions(self) -> None:
        """A datagram service is found."""
        self.playEach(self.resolutions, 1)


class KernelInterruptionTests(InterruptionCase):
    """Connections of the kernel's managers, by a fake librdmacm whose functions raise as well."""

    slowBecause = "it plays connections for each function"
    OWNERS = KernelManager, KernelManagedConnection, kernels, messages, FakeChannel
    # Destroying an ID and reading events cannot fail, or end all connections of the device.
    TRIVIAL = ("destroy", "fileno", "close", "doRead", "take", "_id", "isManaged", "isOfKernel")

    def setUp(self) -> None:
        useFakeKernel(self.patch, lambda: self.clock)
        super().setUp()

    def ends(self, *_: object, **__: object) -> Any:
        return RDMAServerEndpoint(self.clock, PORT, self.devices[1])

    def ask(self, *_: object, **__: object) -> Any:
        return self.connectTo()

    def others(self, manager: Any) -> list[Any]:
        tables = manager._connections, manager.channel.identifiers, manager._handlers
        return [each for each, most in zip(tables, (1, 1, 0), strict=True) if len(each) > most]

    def test_connections(self) -> None:
        """A connection is opened and closed."""
        self.playEach(self.connections, 2)
