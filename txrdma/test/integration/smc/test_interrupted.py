"""
SMC-R connections of which one call of one function raises an exception: both ends end once, no wrong byte is
delivered, another connection of the same link group is not affected, and nothing is left.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, cast
from unittest import mock

from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionDone
from twisted.internet.protocol import connectionDone, Protocol
from twisted.internet.task import Clock
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

import txrdma.smc.flow
import txrdma.smc.group
import txrdma.smc.handshake
import txrdma.smc.stream
import txrdma.streams
from txrdma.iba.types import MTU
from txrdma.sim.sharedmemory import MemoryFaults, SimulatedMemory
from txrdma.smc.common.reactoruse import reactorUse
from txrdma.smc.flow.flow import Flow
from txrdma.smc.flow.sendqueue import LinkSendQueue
from txrdma.smc.group import groups as groupsModule
from txrdma.smc.group._keyexchanges import KeyExchanges
from txrdma.smc.group._linkexchanges import LinkExchanges
from txrdma.smc.group._linkgroup import LinkGroupProtocol
from txrdma.smc.group._linkstate import LinkGroupCore, LinkLife
from txrdma.smc.group.attachment import Attachment
from txrdma.smc.group.failover import LinkFailover
from txrdma.smc.group.group import LinkGroup
from txrdma.smc.group.groups import closeLinkGroups, linkGroups, useDevice
from txrdma.smc.group.link import Link
from txrdma.smc.group.sendscheduler import SendScheduler
from txrdma.smc.handshake.accepting import ServerNegotiation
from txrdma.smc.handshake.outcomes import Outcomes
from txrdma.smc.handshake.proposing import ClientNegotiation
from txrdma.smc.terms.options import Options
from txrdma.soft.device import SoftDevice
from txrdma.soft.shared.sharedqueuepair import SharingReactor
from txrdma.test.support.interruptedworld import InterruptedWorld
from txrdma.test.support.interruptions import Interruptions, ownersIn
from txrdma.testing.smc.hosts import connectedSockets, Host, MemorySocket, MemoryTCP, PollingHost
from txrdma.testing.smc.neighbours import SleepyHost, ticking

PACKAGES = txrdma.smc.flow, txrdma.smc.group, txrdma.smc.handshake, txrdma.smc.stream, txrdma.streams

OF_LINK = Link, LinkGroup, LinkGroupProtocol, LinkExchanges, KeyExchanges, SendScheduler, LinkSendQueue
"""Classes whose state is shared by all connections of a link, which may end with it."""

TRIVIAL = (
    # They handle the exceptions of others.
    *(
        "_aborted",
        "_called",
        "_fillOne",
        "_notify",
        "_watch",
        "dismiss",
        "ended",
        "_notifyFlushed",
        "abortOnError",
        "doRead",
        "finish",
    ),
    *(
        "makeConnection",
        "notify",
        "receive",
        "_step",
        "returning",
        "stopProducing",
        "_raised",
        "_fail",
        "_failing",
        "isolated",
    ),
    # They release what they are called for.
    *(
        "fileno",
        "forget",
        "give",
        "release",
        "remove",
    ),
)

DEVICE = "simulated"
RING = 16 * 1024
DATA = bytes(range(256)) * 120  # more than a ring
SECONDS = 100.0
"""Time in which a connection ends whose peer does not answer."""


class Peer(Protocol):
    """One end: answers everything, or writes and closes when its bytes have come back."""

    transport: Any

    def __init__(self, data: bytes = b"", closes: str = "") -> None:
        self.data, self.closes = data, closes
        self.received = bytearray()
        self.made = self.raised = 0
        self.lost: list[Failure] = []

    def do(self, method: str, *arguments: Any) -> None:
        """Call a method of the transport; abort the connection if that raises, as a program would."""
        for name, given in ((method, arguments), ("abortConnection", ())):
            try:
                getattr(self.transport, name)(*given)
                break
            except ZeroDivisionError:
                self.raised += 1

    def connectionMade(self) -> None:
        self.made += 1
        if self.data:
            self.do("write", self.data)

    def dataReceived(self, data: bytes) -> None:
        self.received += data
        if not self.data:
            self.do("write", data)
        elif self.closes and len(self.received) >= len(self.data):
            self.do(self.closes)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self.lost.append(reason)


class InterruptionTests(SynchronousTestCase):
    """Two connections between the same hosts, of which a function raises once for one of them."""

    slowBecause = "it plays three connections for each function"
    STRIDE = 29
    EXCEPT: tuple[Any, ...] = ()
    hostClass: type[Host] = Host

    def setUp(self) -> None:
        self.data = DATA
        self.isArmed = False
        self.others: list[object] = []
        self.calls = Interruptions(self.patch, ownersIn(*PACKAGES), self.isAffected, TRIVIAL)
        waiting = Clock()
        patched = mock.patch.multiple(groupsModule, monotonic=waiting.seconds, sleep=waiting.advance)
        patched.start()
        self.addCleanup(patched.stop)

    def isAffected(self, *arguments: object) -> bool:
        """Return whether a call is not one for the other connection."""
        return self.isArmed and not (arguments and any(each is arguments[0] for each in self.others))

    def begin(self) -> None:
        """Open the devices of two new hosts."""
        self.number, self.wrong = 50_000, list[str]()
        self.world = world = InterruptedWorld(1)
        self.hosts = [self.host(address) for address in ("198.51.100.1", "198.51.100.2")]
        self.uses = [reactorUse(host).hold() for host in self.hosts]
        for host in self.hosts:
            groups: Any = useDevice(host, DEVICE, host.openDevice())
            groups.ringSize = lambda: RING
        self.addCleanup(world.close)

    def host(self, address: str) -> Host:
        return self.hostClass(self.world, address, lambda: self.world.network.device(address))

    def until(self, condition: Callable[[], Any], what: str, seconds: float = SECONDS) -> None:
        """Run the hosts until a condition is true."""
        if not self.world.until(condition, seconds):
            self.wrong.append(what)

    def pause(self, seconds: float) -> None:
        self.until(self.world.elapsed(seconds), "the time does not pass", seconds + 1)

    def connect(self, client: Peer, server: Peer, isVictim: bool = False) -> tuple[list[Any], MemorySocket]:
        """Begin a connection; return where its outcome is appended, and the socket of the server."""
        self.number += 1
        options = Options(device=DEVICE, agreed=True)
        ends = connectedSockets(
            self.world, Random(self.number), self.hosts[0], self.hosts[1], self.number, 0.0005
        )
        accepting = ServerNegotiation(self.hosts[1], options, Outcomes("server"), lambda: server, None)
        asking = ClientNegotiation(self.hosts[0], options, Outcomes("client"), lambda: client)
        outcome: list[Any] = []
        Deferred.addBoth(asking.finished(), outcome.append)
        self.isArmed = isVictim
        for one, protocol in zip(ends, (asking, accepting), strict=True):
            MemoryTCP(one, protocol).begin()
        return outcome, ends[1]

    def disturb(self) -> None:
        """Do nothing, when the connection has begun."""

    def converse(self, closes: str, isVictim: bool = False) -> tuple[Peer, Peer]:
        """Connect, exchange bytes and close, as far as each step succeeds; return both ends."""
        client, server = Peer(self.data, closes), Peer()
        outcome, accepted = self.connect(client, server, isVictim)
        self.until(lambda: outcome, "the attempt hangs")
        if isVictim:
            self.disturb()
        self.hasFailed = isinstance(outcome[0], Failure) if outcome else False
        self.until(
            lambda: (
                all(each.lost or not each.made for each in (client, server))
                and (server.lost or accepted.isClosed)
            ),
            "an end hangs",
        )
        return client, server

    def play(self, closes: str) -> list[str]:
        """Converse beside another connection, and again; return what is wrong."""
        self.begin()
        world, self.others = self.world, []
        bystanders = Peer(self.data), Peer()
        self.connect(*bystanders)
        self.until(lambda: bystanders[0].received == self.data, "the bystander does not begin")
        self.pause(0.1)  # until there is another link
        for each in bystanders:
            stream = each.transport.stream
            self.others += [each.transport, stream, stream.flow, stream.flow.ring]
        ends = self.converse(closes, isVictim=True)
        hasFailed = self.hasFailed
        self.pause(1.0)
        self.isArmed = False
        self.judge(*ends)
        mayEnd = self.calls.hasRaised and self.calls.owner in OF_LINK and all(end.lost for end in bystanders)
        if not mayEnd:
            bystanders[0].received.clear()
            bystanders[0].transport.write(self.data)
            self.until(lambda: len(bystanders[0].received) >= len(self.data), "the bystander is affected")
        client, server = self.converse("loseConnection")
        if client.received != self.data or client.transport.__class__.__name__ != "SMCTransport":
            self.wrong.append(f"the next connection fails: {client.transport!r}")
        bystanders[0].transport.loseConnection()
        self.until(lambda: all(end.lost for end in bystanders), "the bystander does not end")
        logged = len(self.flushLoggedErrors(ZeroDivisionError)) + len(world.escaped)
        raised = sum(each.raised for each in ends)
        if logged + raised > 1 or (self.calls.hasRaised and not (logged + raised or hasFailed)):
            self.wrong.append(f"it was logged {logged} times, and raised {raised} times")
        self.wrong += [f"logged as well: {each.value!r}" for each in self.flushLoggedErrors()]
        self.clear()
        return self.wrong + world.wrong

    def judge(self, client: Peer, server: Peer) -> None:
        """Check what the ends of the connection have received."""
        for end in (client, server):
            if len(end.lost) > 1:
                self.wrong.append(f"it ended {len(end.lost)} times")
            if not self.data.startswith(bytes(end.received)):
                self.wrong.append("wrong bytes have arrived")
        isClean = client.made and all(each.check(ConnectionDone) for each in (*client.lost, *server.lost))
        isWhole = client.received == server.received == self.data
        if isClean and not isWhole and not (self.world.escaped or client.raised or server.raised):
            self.wrong.append(f"only {len(client.received)} bytes have returned")

    def clear(self) -> None:
        """Check that nothing is left."""
        self.pause(200.0)
        left: list[object] = []
        for host in self.hosts:
            for group in linkGroups(host, DEVICE).groups():
                left += [*group.core.connections, *group.flows, *group._lingering]
                left += [each for each in group.pool if not each.isIdle]
                left += [
                    each for link in group.links for each in (*link.members, *link.scheduler.queue.dirty)
                ]
            left += host.sockets
            host.stop()
            device = host.device
            left += [*device.domains, *device._queuePairs, *device._completionQueues, *device._channels]
            left += [*host.readers, *host.writers]
            closeLinkGroups(host)
        self.wrong += [f"{each!r} is left" for each in left]

    def playEach(self, closes: str) -> None:
        """Play once for each function that is called, and let one of its calls raise."""
        self.calls.begin()
        self.assertEqual(self.play(closes), [])
        self.assertGreater(len(self.calls.counts), 140)
        for function in [each for each in self.calls.counts if each[0] in self.EXCEPT or each in self.EXCEPT]:
            del self.calls.counts[function]
        found = {}
        for (owner, name), number in self.calls.each(2, self.STRIDE):
            if wrong := self.play(closes):
                found[owner.__name__, name, number] = wrong
        self.assertEqual(found, {}, "\n".join(f"{key}: {value}" for key, value in found.items()))

    def test_close(self) -> None:
        """The client closes its connection."""
        self.playEach("loseConnection")

    def test_small(self) -> None:
        """The client sends a few bytes."""
        self.data = DATA[:64]
        self.playEach("loseConnection")

    def test_abort(self) -> None:
        """The client aborts its connection."""
        self.playEach("abortConnection")


class PollingTests(InterruptionTests):
    """The same with reactors that poll completion queues."""

    hostClass = PollingHost


class SharedMemoryTests(InterruptionTests):
    """The same between two processes that share memory."""

    hostClass = SleepyHost

    def begin(self) -> None:
        ticks = ticking()
        ticks.__enter__()
        self.addCleanup(ticks.__exit__, None, None, None)
        self.memory: SimulatedMemory | None = None
        super().begin()

    def host(self, address: str) -> Host:
        if self.memory is None:
            self.memory = SimulatedMemory(self.world.clock, 1, MemoryFaults(delaySeconds=1e-5))
        memory, host = self.memory, self.hostClass(self.world, address, lambda: device())

        def device() -> SoftDevice:
            return memory.device(cast(SharingReactor, host), address, MTU.MTU_4096, 1 << 18)

        return host


class FailoverTests(InterruptionTests):
    """
    Functions of a connection between hosts with two networks, of which the first one fails.

    If a function of the other link raises, too, connections end when the failure of both is detected.
    """

    EXCEPT = *OF_LINK, LinkFailover, LinkGroupCore, LinkLife, Attachment, (Flow, "arrived")

    def host(self, address: str) -> Host:
        addresses = address, address.replace("198.51.100", "203.0.113")
        return self.hostClass(self.world, address, lambda: self.world.network.device(*addresses))

    def disturb(self) -> None:
        self.world.network.partition(*(host.address for host in self.hosts))

    def clear(self) -> None:
        self.world.network.heal()
        super().clear()
