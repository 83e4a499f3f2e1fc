"""
The kernel's communication manager through librdmacm, tested with txrdma's manager and with C{rping}.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from hashlib import sha256
from typing import Any, TYPE_CHECKING

from twisted.internet.defer import CancelledError
from twisted.internet.error import ConnectionDone
from twisted.internet.protocol import Factory

from txrdma.cm.connections import adapter as adapters
from txrdma.cm.connections.endpoints import IBClientEndpoint, RDMAClientEndpoint, RDMAServerEndpoint, USUAL
from txrdma.cm.errors import PeerSilent, Rejected, Rejection
from txrdma.cm.layouts.messages import RejectReason
from txrdma.cm.rdmacm.manager import KernelManager
from txrdma.cm.rping import PingClient, TERMS
from txrdma.cm.rsocket.endpoints import RSocketClientEndpoint, RSocketServerEndpoint
from txrdma.cm.terms import Terms
from txrdma.error import InvalidRequest
from txrdma.iba.path import IBPath
from txrdma.iba.types import GID
from txrdma.interfaces import IVerbsDevice
from txrdma.messages.protocol import MessageFactory
from txrdma.test.system.kernel import Box, record, Witness
from txrdma.test.system.kernel.cmworld import CMTestCase, counted, Meeting, since
from txrdma.test.system.kernel.test_rdmacm import Pinged
from txrdma.test.system.kernel.test_rsocket_programs import CopyClient, CopyServer, MiB
from txrdma.test.system.kernel.world import HERE, leaveToNext, run, THERE

BOXES = (Box(rxe=False, timeout=420),)

PORT = 7471
RPING_PORT = 7174


class Answering(Meeting):
    """An end that answers with private data, and echoes messages."""

    answer = b"welcome"

    def messageReceived(self, data: bytes, immediate: int | None) -> None:
        super().messageReceived(data, immediate)
        self.transport.sendMessage(data[::-1], immediate)


class KernelCase(CMTestCase):
    """
    Tests with rxe and the kernel's manager here, and the software device with txrdma's manager in another
    namespace.

    @cvar kernelServes: whether the kernel's end is the passive one.
    """

    kernelServes = True

    def setUp(self) -> None:
        super().setUp()
        leaveToNext()
        self.rxe: IVerbsDevice = self.world.openRXE(self.reactor)
        self.addCleanup(self.rxe.close)
        self.addCleanup(self._closeAdapters)  # before the devices are closed

    def _closeAdapters(self) -> None:
        """End all connections, so that adapters and librdmacm's channel are closed."""
        self._endConnections()
        places = [(self.reactor, device) for device in (self.rxe, self.soft)]
        self.runUntil(lambda: not any(place in adapters._adapters for place in places))

    @property
    def server(self) -> tuple[IVerbsDevice, str]:
        """The device and the address of the passive end."""
        return (self.rxe, HERE) if self.kernelServes else (self.soft, THERE)

    @property
    def client(self) -> tuple[IVerbsDevice, str]:
        """The device and the address of the active end."""
        return (self.soft, THERE) if self.kernelServes else (self.rxe, HERE)

    def listen(self, make: Callable[[], Any], terms: Terms = USUAL, port: int = PORT) -> Any:
        """Listen; C{made} records the protocols."""
        device, _ = self.server
        return self.listening(RDMAServerEndpoint(self.reactor, port, device, terms), self.recording(make))

    def asking(self, make: Callable[[], Any] = Meeting, terms: Terms = USUAL,
               privateData: bytes = b"", port: int = PORT) -> Any:  # fmt: skip
        endpoint = RDMAClientEndpoint(
            *(self.reactor, self.server[1], port, self.client[0], terms, privateData)
        )
        return endpoint.connect(self.recording(make))


if TYPE_CHECKING:
    _KernelCase = KernelCase
else:
    _KernelCase = object


class OwnOnTheWire(_KernelCase):
    """Connections between the kernel's manager and txrdma's, opened by either."""

    def test_exchange(self) -> None:
        """Messages, private data and credits work in both directions, and both ends report the end."""
        self.listen(Answering)
        before = counted()
        client = self.result(self.asking(terms=USUAL, privateData=b"hello"))
        self.runUntil(lambda: self.made[0].isMade)
        [server, _] = self.made
        kernels, ours = (server, client) if self.kernelServes else (client, server)
        self.assertEqual((kernels.transport.managedBy, ours.transport.managedBy), ("librdmacm", "txrdma"))
        self.assertEqual(client.transport.getPeer().privateData, b"welcome")
        self.assertEqual(server.transport.getPeer().privateData, b"hello")
        self.assertEqual(server.transport.getPeer().host, self.client[1])
        self.assertEqual(client.transport.getPeer().host, self.server[1])
        self.assertEqual(client.transport.getPeer().port, PORT)
        sent = [bytes([n]) * (n * 40) for n in range(1, 101)]
        for each in sent:
            client.transport.sendMessage(each, 7)
        self.runUntil(lambda: len(client.messages) == len(sent), 6.0)
        self.assertEqual(client.messages, [each[::-1] for each in sent])
        self.assertEqual(kernels.transport.agreed.mtu, ours.transport.agreed.mtu)
        (client if self.kernelServes else server).transport.loseConnection()
        self.runUntil(lambda: client.lost is not None and server.lost is not None)
        for end in (client, server):
            self.assertIsNotNone(end.lost.check(ConnectionDone), end.lost)
        rx, tx = ("rx", "tx") if self.kernelServes else ("tx", "rx")
        kinds = (f"{rx} req", f"{tx} rep", f"{rx} rtu", "rx dreq", "tx drep")
        self.assertEqual(since(before), dict.fromkeys(kinds, 1))

    def test_kernelDisconnects(self) -> None:
        """A disconnect by the kernel's end is answered, and both ends report it."""
        self.listen(Meeting)
        client = self.result(self.asking())
        self.runUntil(lambda: self.made[0].isMade)
        [server, _] = self.made
        before = counted()
        (server if self.kernelServes else client).transport.loseConnection()
        self.runUntil(lambda: client.lost is not None and server.lost is not None)
        for end in (client, server):
            self.assertIsNotNone(end.lost.check(ConnectionDone), end.lost)
        self.assertEqual(since(before), {"tx dreq": 1, "rx drep": 1})

    def test_rejected(self) -> None:
        """A factory's reject carries private data; a port without listener rejects with reason 8."""

        def refuse() -> Any:
            raise Rejection(RejectReason.CONSUMER_REJECT, b"not today")

        self.listen(refuse)
        rejected = self.assertRaises(Rejected, self.result, self.asking())
        self.assertIs(rejected.status, RejectReason.CONSUMER_REJECT)
        self.assertEqual(rejected.privateData, b"not today")
        rejected = self.assertRaises(Rejected, self.result, self.asking(port=9))
        self.assertIs(rejected.status, RejectReason.INVALID_SERVICE_ID)

    def test_cancelled(self) -> None:
        """A cancelled attempt leaves nothing in the manager."""
        self.listen(Meeting)
        for seconds in (0.0, 0.003, 0.01, 0.03):
            asking = self.asking()
            self.runFor(seconds)
            if not asking.called:
                asking.cancel()
                self.assertRaises(CancelledError, self.result, asking)
        for each in self.made:
            if each.isMade:
                each.transport.abortConnection()
        self.runFor(1.0)
        kernel = adapters._adapters.get((self.reactor, self.rxe))
        if kernel is not None:  # otherwise it is closed with all its objects
            assert isinstance(kernel.manager, KernelManager)
            living = [name for name in kernel.manager.states if name not in ("TIMEWAIT", "FREE")]
            self.assertEqual(living, [])

    def test_many(self) -> None:
        """Thirty connections are made at once, carry a message each, and end."""
        self.listen(Answering)
        begun = time.monotonic()
        asked = [self.asking() for _ in range(30)]
        clients = [self.result(each, 6.0) for each in asked]
        record("connections per second", round(30 / (time.monotonic() - begun)))
        for number, client in enumerate(clients):
            client.transport.sendMessage(b"message %d" % number)
        self.runUntil(lambda: all(client.messages for client in clients), 6.0)
        self.assertEqual([client.messages[0] for client in clients],
                         [(b"message %d" % number)[::-1] for number in range(30)])  # fmt: skip
        for client in clients:
            client.transport.loseConnection()
        self.runUntil(lambda: all(each.lost is not None for each in self.made), 6.0)

    def test_stream(self) -> None:
        """C{rcopy} transfers 4 MiB over an rsocket stream, with equal hashes."""
        content = bytes(range(251)) * (4 * MiB // 251)
        server = CopyServer()
        self.made.append(server)
        device, host = self.server
        self.listening(RSocketServerEndpoint(self.reactor, 7427, device), Factory.forProtocol(lambda: server))
        client = CopyClient("copy", content)
        endpoint = RSocketClientEndpoint(self.reactor, host, 7427, self.client[0])
        self.result(endpoint.connect(Factory.forProtocol(lambda: client)))
        self.made.append(client)
        self.runUntil(lambda: client.lost is not None and server.lost is not None, 6.0)
        assert client.lost is not None
        self.assertIsNotNone(client.lost.check(ConnectionDone), client.lost)
        self.assertEqual(server.hash.digest(), sha256(content).digest())


class KernelServesTests(OwnOnTheWire, KernelCase):
    """The kernel's end is the passive one."""

    witness = Witness("rdma: over librdmacm, server", "rdma: over the software device", "messages, streams")


class KernelAsksTests(OwnOnTheWire, KernelCase):
    """The kernel's end is the active one."""

    witness = Witness("rdma: over librdmacm, client", "rdma: over the software device", "messages, streams")
    kernelServes = False

    def test_nobodyThere(self) -> None:
        """An attempt to connect to an address that no host has fails with its reason."""
        endpoint = RDMAClientEndpoint(self.reactor, "10.79.0.77", PORT, self.rxe, USUAL)
        self.assertRaises(PeerSilent, self.result, endpoint.connect(MessageFactory(Meeting)), 9.0)

    def test_services(self) -> None:
        """Service IDs other than ports, and alternate paths, are refused with a reason."""
        path = IBPath(sgid=GID.fromIP(HERE), dgid=GID.fromIP(THERE))
        endpoint = IBClientEndpoint(self.reactor, 0x42, path, self.rxe)
        self.assertRaises(InvalidRequest, self.result, endpoint.connect(MessageFactory(Meeting)))
        self.listen(Meeting)
        client = self.result(self.asking())
        self.assertRaises(InvalidRequest, client.transport.loadAlternatePath, path)


class RpingTests(KernelCase):
    """The kernel's manager at both ends; one of them is C{rping}'s."""

    witness = Witness("rdma: over librdmacm", "rping on the same rxe", "both roles")
    programs = ("rping",)

    def test_server(self) -> None:
        """rping connects to txrdma's server, which listens by librdmacm."""
        self.listen(Pinged, TERMS, RPING_PORT)
        status, output = self.ends(self.start("rping", "-c", "-a", HERE, "-I", HERE, "-V", "-v", "-C", "5"))
        self.assertEqual((status, output.count("ping data: rdma-ping-")), (0, 5), output)
        self.runUntil(lambda: self.made[0].lost is not None)
        self.assertEqual(self.made[0].pings, 5)

    def test_client(self) -> None:
        """txrdma's client connects to rping's server by librdmacm."""
        server = self.start("rping", "-s", "-a", HERE, "-v", "-d")
        self.expectOutput(server, "rdma_listen")
        client = PingClient(5, 64, True, lambda ping: None)
        endpoint = RDMAClientEndpoint(self.reactor, HERE, RPING_PORT, self.rxe, TERMS)
        self.result(endpoint.connect(MessageFactory(lambda: client)))
        self.assertEqual(self.result(client.ended), 5)
        status, received = self.ends(server)
        self.assertEqual((status, received.count("server ping data: rdma-ping-")), (0, 5), received)


class UmadTests(KernelCase):
    """txrdma's manager on the kernel's device, by umad, without the kernel's own manager."""

    witness = Witness("rdma: over umad", "rdma: over the software device", "the kernel's CM not loaded")
    modules = ("rdma_ucm", "rdma_cm", "ib_cm")

    def setUp(self) -> None:
        for module in self.modules:
            run("rmmod", module)
        self.addCleanup(run, "modprobe", "rdma_ucm")
        super().setUp()

    def test_exchange(self) -> None:
        """Messages pass in both directions, whichever end has connected."""
        for self.kernelServes in (True, False):
            del self.made[:]
            port = self.listen(Answering)
            client = self.result(self.asking(privateData=b"hello"))
            self.runUntil(lambda: self.made[0].isMade)
            self.assertEqual({each.transport.managedBy for each in self.made}, {"txrdma"})
            client.transport.sendMessage(b"message")
            self.runUntil(partial(bool, client.messages))
            self.assertEqual(client.messages, [b"egassem"])
            client.transport.loseConnection()
            self.runUntil(lambda: all(each.lost is not None for each in self.made))
            port.stopListening()
