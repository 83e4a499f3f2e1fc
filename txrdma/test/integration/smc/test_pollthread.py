"""
Tests for L{txrdma.smc.group.pollthread}, and for link groups over adapters while SMC is not in use.
"""

from __future__ import annotations

import select
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from zope.interface import alsoProvides, implementer

from twisted.internet.interfaces import IReactorFromThreads

from txrdma.interfaces import IReactorDevice
from txrdma.smc.common.reactoruse import reactorUse
from txrdma.smc.group import groups as groupsModule
from txrdma.smc.group._groupstate import Timing
from txrdma.smc.group.groups import closeLinkGroups
from txrdma.test.support.smc.races import Listener, RaceTestCase
from txrdma.testing.smc.hosts import Host


class PolledByThread:
    """A poll thread without a thread: the test polls its descriptors with C{poll}."""

    def __init__(self, reactor: object, ready: Callable[[], None]) -> None:
        self._ready = ready
        self._watched: Sequence[int] | None = None

    def watch(self, descriptors: Sequence[int], seconds: float | None) -> None:
        self._watched = list(descriptors)

    def stop(self) -> None:
        self._watched = None

    def poll(self) -> None:
        if self._watched is not None and select.select(self._watched, [], [], 0)[0]:
            self._ready()


@implementer(IReactorFromThreads)
class AttendedHost(Host):
    """A host whose reactor has C{callFromThread}."""

    def callFromThread(self, callable: Callable[..., Any], *args: object, **kw: object) -> None:
        callable(*args, **kw)


class RestTests(RaceTestCase):
    """Suspended link groups of a client whose device works without the reactor, as adapters do."""

    def setUp(self) -> None:
        self.patch(groupsModule, "PollThread", PolledByThread)
        self.patch(groupsModule, "CLOSING_SECONDS", 0.0)  # simulated time does not advance meanwhile
        super().setUp()

    def host(self, number: int) -> Host:
        if number == 2:
            return super().host(number)
        address = f"198.51.100.{number}"
        host = AttendedHost(self.world, address, self.device)
        self.groups(host)
        self.addCleanup(closeLinkGroups, host)
        return host

    def device(self) -> Any:
        """Return a device that works while the process is idle, as an adapter does."""
        device: Any = self.world.network.device("198.51.100.1")
        device.attributes = replace(device.attributes, acknowledgesByProgram=False)
        device.rest = device.wake = device.attend = lambda: None
        device.descriptors = list
        device.canRest = device.isAttended = True
        alsoProvides(device, IReactorDevice)
        return device

    def closed(self) -> tuple[Any, Listener]:
        """Close the client's end of a connection; return its link group and the server's protocol."""
        here, there, _ = self.connect(Listener(lambda made: made.transport.write(b"read me later")))
        self.until(lambda: there.received)
        [group] = self.groupsOf[self.client].groups()
        here.transport.loseConnection()
        self.until(lambda: here.reason and there.hasEnded)
        return group, there

    def attend(self, seconds: float) -> None:
        """Let simulated time pass, and poll the descriptors that the poll thread watches."""
        end = self.world.clock.seconds() + seconds
        while self.world.clock.seconds() < end:
            self.wait(0.01)
            self.groupsOf[self.client]._pollThread.poll()  # type: ignore[attr-defined]  # a LookedAfter

    def test_openGroupLeavesReactorWithLastConnection(self) -> None:
        group, _ = self.closed()
        self.assertTrue(reactorUse(self.client).isIdle)
        self.assertFalse(group.isOver)
        self.assertNotIn(group.links[0].descriptor, [reader.fileno() for reader in self.client.getReaders()])
        self.assertFalse(group._timer.isPending)

    def test_peerThatClosesLongAfterClientEndsInOrder(self) -> None:
        group, there = self.closed()
        self.attend(5.0)
        self.assertEqual(len(group.core.connections), 1)
        there.transport.loseConnection()
        self.attend(1.0)
        self.assertEqual(there.reason.__name__ if there.reason else "", "ConnectionDone")
        self.assertEqual(group.core.connections, {})

    def test_suspendedGroupAnswersDeleteRKey(self) -> None:
        group, there = self.closed()
        [other] = self.groupsOf[self.server].groups()
        there.transport.loseConnection()
        [buffer] = other.pool
        other.core.deleteRKeys([buffer.rkey], self.world.clock.seconds())
        other._turnCore()
        self.attend(Timing().response / 2)
        self.assertEqual(list(other.pool), [])
        self.assertEqual(group.core.first.remoteKeys, {})

    def test_nextConnectionJoinsSuspendedGroup(self) -> None:
        group, _ = self.closed()
        here, there, _ = self.connect(Listener(lambda made: made.transport.write(b"again")))
        self.until(lambda: there.received == b"again")
        self.assertEqual(self.groupsOf[self.client].groups(), [group])
        self.assertEqual(here.mode, "SMC-R")

    def test_processEndClosesSuspendedGroupAtPeer(self) -> None:
        self.closed()
        closeLinkGroups(self.client)
        self.wait(Timing().response + 1.0)
        self.assertEqual(self.groupsOf[self.server].groups(), [])
