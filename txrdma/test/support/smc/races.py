"""
Two hosts on a simulated network with SMC connections between them, in simulated time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

from zope.interface import implementer

from twisted.internet.interfaces import IHalfCloseableProtocol
from twisted.internet.protocol import connectionDone, Protocol
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from txrdma.smc.common.reactoruse import reactorUse, Use
from txrdma.smc.group import groups as groupsModule
from txrdma.smc.group.groups import closeLinkGroups, LinkGroups, useDevice
from txrdma.smc.handshake.accepting import ServerNegotiation
from txrdma.smc.handshake.outcomes import Outcomes
from txrdma.smc.handshake.proposing import ClientNegotiation
from txrdma.smc.terms.options import Options
from txrdma.smc.wire.clc import Proposal
from txrdma.testing.smc.hosts import connectedSockets, Host, MemorySocket, MemoryTCP, World
from txrdma.testing.smc.scenario import DEVICE


@implementer(IHalfCloseableProtocol)
class Listener(Protocol):
    """A protocol that records what it receives, and how its connection ends."""

    transport: Any

    def __init__(self, made: Callable[[Listener], object] = lambda listener: None) -> None:
        self._made = made
        self.received = b""
        self.mode = ""
        self.hasEnded = False
        self.reason: type[BaseException | None] | None = None

    def connectionMade(self) -> None:
        self.mode = self.transport.smc.mode
        self._made(self)

    def dataReceived(self, data: bytes) -> None:
        self.received += data

    def readConnectionLost(self) -> None:
        self.hasEnded = True

    def writeConnectionLost(self) -> None:
        pass

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self.reason = reason.value.__class__


class RaceTestCase(SynchronousTestCase):
    """A test with a client and a server, each on its own simulated host."""

    def setUp(self) -> None:
        # Closing link groups waits for peers in real time, while simulated time does not advance.
        self.patch(groupsModule, "CLOSING_SECONDS", 0.0)
        self.world = World(1)
        self.addCleanup(self.world.close)
        self.uses: list[Use] = []
        self.groupsOf: dict[Host, LinkGroups] = {}
        self.client, self.server = (self.host(number) for number in (1, 2))
        self.number = 50_000
        self.options = Options(device=DEVICE, agreed=True)

    def host(self, number: int) -> Host:
        address = f"198.51.100.{number}"
        host = Host(self.world, address, lambda: self.world.network.device(address))
        # Like a listening port, this retains link groups when connections end.
        self.uses.append(reactorUse(host).hold())
        self.addCleanup(self.uses[-1].release)
        self.groups(host)
        self.addCleanup(closeLinkGroups, host)
        return host

    def groups(self, host: Host) -> LinkGroups:
        groups = useDevice(host, DEVICE, host.openDevice())
        groups.ringSize = lambda: 16384  # type: ignore[method-assign]  # the default is larger
        self.groupsOf[host] = groups
        return groups

    def connect(
        self,
        here: Listener | None = None,
        there: Listener | None = None,
        latency: float = 1e-3,
        client: Host | None = None,
        **keys: Any,
    ) -> tuple[Listener, Listener, tuple[MemorySocket, MemorySocket]]:
        """Begin to connect, and return both protocols and both sockets; C{keys} are options of both ends."""
        here, there = here or Listener(), there or Listener()
        client = client or self.client
        options = replace(self.options, **keys)
        accepting = self.accepting(options, there)
        asking = ClientNegotiation(client, options, Outcomes("client"), lambda: here)
        asking.finished().addErrback(lambda failure: None)
        self.negotiations = asking, accepting
        socket = self.connectSocket(accepting, client, latency)
        MemoryTCP(socket, asking).begin()
        return here, there, (socket, socket.peer)

    def connectSocket(
        self, accepting: ServerNegotiation, client: Host | None = None, latency: float = 1e-3
    ) -> MemorySocket:
        """Connect a client whose bytes the test sends, and return its socket."""
        self.number += 1
        here, there = connectedSockets(
            self.world, Random(1), client or self.client, self.server, self.number, latency
        )
        MemoryTCP(there, accepting).begin()
        return here

    def proposal(self, peerID: bytes = b"") -> bytes:
        """Return a Proposal of the client, with its name or another one."""
        (port,) = self.groupsOf[self.client].candidates
        return Proposal(peerID or port.peerID, port.gid, port.mac, 0xC6336401, 32).encode()

    def pair(
        self, here: Listener | None = None, there: Listener | None = None, **keys: Any
    ) -> tuple[Listener, Listener]:
        """Connect, and return both protocols as soon as they are connected, by SMC-R or TCP."""
        here, there, _ = self.connect(here, there, **keys)
        self.until(lambda: here.mode and there.mode, 20.0)
        return here, there

    def accepting(self, options: Options, there: Listener) -> ServerNegotiation:
        """Return the server's handshake for a connection."""
        return ServerNegotiation(self.server, options, Outcomes("server"), lambda: there, None)

    def wait(self, seconds: float) -> None:
        """Let simulated time pass."""
        clock = self.world.clock
        end = clock.seconds() + seconds
        clock.callLater(seconds, lambda: None)
        while clock.seconds() < end and self.world.turn():
            pass
        self.world.turn()

    def until(self, condition: Callable[[], object], seconds: float = 5.0) -> None:
        """Let simulated time pass until a condition is true; fail if it is not within these seconds."""
        end = self.world.clock.seconds() + seconds
        while not condition():
            self.assertTrue(self.world.turn() and self.world.clock.seconds() < end, "never happened")
