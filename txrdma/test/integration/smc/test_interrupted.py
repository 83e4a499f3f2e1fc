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
from twisted.internet.task import Clock
from twisted.internet.tcp import Connection
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
from txrdma.smc.group._groupstate import LinkGroupCore, LinkLife
from txrdma.smc.group._keyexchanges import KeyExchanges
from txrdma.smc.group._linkexchanges import LinkExchanges
from txrdma.smc.group._linkgroup import LinkGroupProtocol
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
from txrdma.test.support.interruptedstreams import InterruptedStreams, Peer, SECONDS
from txrdma.test.support.interruptions import ownersIn
from txrdma.testing.smc.hosts import connectedSockets, Host, MemoryTCP, PollingHost, World
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


class InterruptionTests(InterruptedStreams, SynchronousTestCase):
    """Two connections between the same hosts, of which a function raises once for one of them."""

    OWNERS = staticmethod(lambda: tuple(ownersIn(*PACKAGES)))
    TRIVIAL = TRIVIAL
    SHARED = OF_LINK
    LEAST = 140
    TRANSPORT = "SMCTransport"
    hostClass: type[Host] = Host

    def setUp(self) -> None:
        super().setUp()
        waiting = Clock()
        patched = mock.patch.multiple(groupsModule, monotonic=waiting.seconds, sleep=waiting.advance)
        patched.start()
        self.addCleanup(patched.stop)

    def begin(self) -> None:
        """Open the devices of two new hosts."""
        self.number = 50_000
        self.world = world = World(1)
        self.hosts = [self.host(address) for address in ("198.51.100.1", "198.51.100.2")]
        self.uses = [reactorUse(host).hold() for host in self.hosts]
        for host in self.hosts:
            groups: Any = useDevice(host, DEVICE, host.openDevice())
            groups.ringSize = lambda: RING
        self.addCleanup(world.close)

    def host(self, address: str) -> Host:
        return self.hostClass(self.world, address, lambda: self.world.network.device(address))

    def seconds(self) -> float:
        return self.world.clock.seconds()

    def iterate(self) -> bool:
        return self.world.turn()

    def until(self, condition: Callable[[], Any], what: str, seconds: float = SECONDS) -> None:
        self.world.clock.callLater(seconds, lambda: None)
        super().until(condition, what, seconds)

    def readerHasRaised(self, reader: Any) -> None:
        if not isinstance(reader, Connection):
            super().readerHasRaised(reader)
            return
        reader.reactor.removeReader(reader)
        reader.reactor.removeWriter(reader)
        reader.connectionLost(self.escaped[-1])

    def attempt(self, client: Peer, server: Peer, isVictim: bool) -> tuple[list[Any], Callable[[], object]]:
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
        return outcome, lambda: server.lost or ends[1].isClosed

    def partsOf(self, transport: Any) -> list[object]:
        stream = transport.stream
        return [transport, stream, stream.flow, stream.flow.ring]

    def clear(self) -> None:
        self.passTime(200.0)
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
