"""Two simulated hosts, and protocols that record events, for tests of connections."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from txrdma.btl import lifeline as lifelines
from txrdma.btl import module as modules
from txrdma.btl import probes
from txrdma.btl.connections import PeerOpening
from txrdma.btl.core.counters import ModuleCounters
from txrdma.btl.ends import DeviceSpecs
from txrdma.btl.introductions import Introduction, MAGIC, VERSION
from txrdma.btl.lifeline import PeerConnection
from txrdma.iba.verbs import QPKind
from txrdma.sim.network import Faults
from txrdma.soft.device import SoftDevice
from txrdma.testing.protocols import MessageRecorder, Recorders
from txrdma.testing.smc.hosts import connectedSockets, Host, MemoryTCP, World

TAG, ORDERED = 5, 6


class TagRecorder(MessageRecorder):
    """
    A recorder that also receives messages with two tags.

    @ivar tagged: messages with these tags, in order of arrival.
    """

    def __init__(self) -> None:
        super().__init__()
        self.tagged: list[tuple[int, bytes]] = []

    def connectionMade(self) -> None:
        super().connectionMade()
        for tag in (TAG, ORDERED):
            self.transport.setHandler(tag, partial(self.tagReceived, tag), inOrder=tag == ORDERED)

    def tagReceived(self, tag: int, data: memoryview) -> None:
        """Record a message."""
        self.tagged.append((tag, bytes(data)))

    def why(self) -> str:
        """Return the name of the exception with which the connection ended."""
        (name,) = self.ends
        return name


class HostsCase(SynchronousTestCase):
    """Two hosts with a software device each, on a simulated network."""

    seed = 1
    faults = Faults()

    def setUp(self) -> None:
        random = Random(self.seed)  # otherwise a failure with a seed might not be reproducible
        for module in (modules, lifelines):
            self.patch(module, "randbits", random.getrandbits)
        self.patch(probes, "token_bytes", random.randbytes)
        self.escaped: list[Failure] = []
        self.world = World(self.seed)
        self.addCleanup(self.world.close)
        self.world.network.faults = self.faults
        self.hosts = [self.host(address) for address in ("10.0.1.1", "10.0.1.2")]

    def host(self, address: str) -> Host:
        def device() -> SoftDevice:
            made: SoftDevice = self.world.network.device(address)
            return made

        host = Host(self.world, address, device)
        host.openDevice()
        self.addCleanup(self._leave, host)
        return host

    def _leave(self, host: Host) -> None:
        """Close what a test has left open."""
        for key, module in list(modules._modules.items()):
            if key[0] is host:
                module._isClosed = True
                module._closing.close()
        host.device.close()

    def devices(self, host: Host) -> DeviceSpecs:
        """Return the devices of a host's endpoint."""
        device: DeviceSpecs = host.device
        return device

    def open(
        self, client: Any = None, server: Any = None, here: int = 0, there: int = 1, delay: float = 50e-6
    ) -> tuple[PeerOpening, PeerOpening]:
        """Start a connection of two hosts with these protocols; C{delay} is TCP's delay in seconds."""
        return self.openBy(Recorders([client].pop), Recorders([server].pop), here, there, delay)

    def openBy(
        self, client: Any, server: Any, here: int = 0, there: int = 1, delay: float = 50e-6
    ) -> tuple[PeerOpening, PeerOpening]:
        """Start a connection with the protocols of two factories."""
        ends = connectedSockets(self.world, Random(2), self.hosts[here], self.hosts[there], 40000, delay)
        openings = []
        for socket, factory in zip(ends, (client, server), strict=True):
            host = socket.host
            opening = PeerOpening(host, self.devices(host), factory, socket is ends[0])
            MemoryTCP(socket, opening.lifeline).begin()
            openings.append(opening)
        self.sockets = ends
        return openings[0], openings[1]

    def connected(
        self, here: int = 0, there: int = 1, delay: float = 50e-6
    ) -> tuple[TagRecorder, TagRecorder]:
        """Return two connected protocols: the client's and the server's."""
        client, server = TagRecorder(), TagRecorder()
        self.connect(client, server, here, there, delay)
        return client, server

    def connect(self, client: Any, server: Any, here: int = 0, there: int = 1, delay: float = 50e-6) -> None:
        """Connect these protocols, and wait until they are."""
        for opening in self.open(client, server, here, there, delay):
            opening.answer.addErrback(lambda failure: self.fail(str(failure)))
        self.wait(lambda: client.isMade and server.isMade)

    def wait(self, condition: Callable[[], object], seconds: float = 30.0) -> None:
        """Advance the clock until a condition is true."""
        end = self.world.clock.seconds() + seconds
        while not condition() and self.world.clock.seconds() < end and self.world.turn():
            pass
        self.assertTrue(condition())

    def waitAnyway(self, condition: Callable[[], object], seconds: float = 60.0) -> bool:
        """
        Wait until a condition is true, and return whether it is; store in C{escaped} what is raised to the
        reactor.
        """
        end = self.world.clock.seconds() + seconds
        while True:
            try:
                self.wait(condition, end - self.world.clock.seconds())
                return True
            except ZeroDivisionError:
                self.escaped.append(Failure())
            except self.failureException:
                return False

    def close(self, client: TagRecorder, server: TagRecorder) -> None:
        """Close a connection in order, and wait for both ends."""
        client.transport.loseConnection()
        self.wait(lambda: client.lost and server.lost)
        self.assertEqual((client.why(), server.why()), ("ConnectionDone", "ConnectionDone"))

    def assertRefused(
        self, *messages: tuple[int, bytes], ends: tuple[TagRecorder, TagRecorder] | None = None
    ) -> None:
        """Assert that a peer that sends these tags and bytes loses its connection, and no other one."""
        client, server = ends or self.connected()
        bystanders = self.connected()
        for tag, data in messages:
            transport = client.transport
            transport._module.core.send(transport._peer, tag, data)
            transport._module.turnLater()
        self.wait(lambda: client.lost and server.lost)
        self.assertEqual(server.why(), "ConnectionAborted", messages[0])
        self.outcome(bystanders[0].transport.send(TAG, b"well"))

    def introduction(self, host: Host) -> Introduction:
        """Return the introduction of a host that has no module."""
        return Introduction(
            magic=MAGIC, version=VERSION, commandQPN=2, dataQPN=3, mtu=1024, name=77,
            interfaces=1, sequence=0, gid=host.device.gids(1)[0],
        )  # fmt: skip

    def counters(self, number: int = 0) -> ModuleCounters:
        """Return the counters of a host's module."""
        host = self.hosts[number]
        return modules.moduleOf(host, host.device).core.counters

    def reliable(self, number: int = 0) -> list[Any]:
        """Return the reliable queue pairs of a host."""
        return [each for each in self.hosts[number].device._queuePairs if each.kind is QPKind.RC]

    def lifeline(self, end: TagRecorder) -> PeerConnection:
        lifeline: PeerConnection = end.transport._lifeline
        return lifeline

    def pause(self, seconds: float) -> None:
        over: list[bool] = []
        self.world.clock.callLater(seconds, over.append, True)
        while not over:
            self.world.turn()

    def outcome(self, answer: Deferred[Any], seconds: float = 30.0) -> Any:
        """Return the result of a Deferred; advance the clock until it fires."""
        self.wait(lambda: answer.called, seconds)
        return self.successResultOf(answer)

    def assertNothingLeft(self) -> None:
        """Assert that no host has a module, queue pair, memory region, reader or timer left."""
        self.pause(0.01)
        for host in self.hosts:
            if host.isDead:
                continue
            self.assertEqual([key for key in modules._modules if key[0] is host], [])
            device = host.device
            self.assertEqual((len(device._queuePairs), len(device.domains)), (0, 0))
            self.assertEqual(len(device._completionQueues), 0)
            self.assertEqual(host.getReaders(), [])
        calls = [getattr(call.func, "__self__", None) for call in self.world.clock.calls]
        self.assertEqual([call for call in calls if not getattr(call, "_host", self.hosts[0]).isDead], [])
