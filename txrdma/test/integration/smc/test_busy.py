"""
A busy peer is not considered lost; a peer whose host has failed is considered lost when TCP would do so.
"""

from __future__ import annotations

from typing import Any, cast

from twisted.internet.error import ConnectionDone, ConnectionLost

from txrdma.sim.sharedmemory import MemoryFaults, SimulatedMemory
from txrdma.smc.group.buffers import MOST_ELEMENTS
from txrdma.smc.group.group import LinkGroup
from txrdma.smc.group.groups import LinkGroups, linkGroups, timingOn
from txrdma.smc.wire.llc import Body, TestLink
from txrdma.soft.shared.sharedqueuepair import SharingReactor
from txrdma.test.support.smc.races import Listener, RaceTestCase
from txrdma.testing.smc.hosts import Host
from txrdma.testing.smc.scenario import DEVICE

BYTES = bytes(range(256)) * 400
"""More data than fits into a ring."""


class BusyTests(RaceTestCase):
    """Connections over RoCE, where only the peer's program can show that the peer is alive."""

    def pair(self, *ends: Any, **keys: Any) -> tuple[Listener, Listener]:
        here, there = super().pair(*ends, **keys)
        self.assertEqual((here.mode, there.mode), ("SMC-R", "SMC-R"))
        self.wait(0.1)  # until the server's ADD LINK is rejected
        return here, there

    def test_reactorBlockedForTenMinutesLosesNothing(self) -> None:
        quiet, (here, there) = self.pair(), self.pair()
        self.server.sleep()
        here.transport.write(BYTES)
        self.wait(600)
        self.assertEqual(there.received, b"")
        self.server.wake()
        self.until(lambda: there.received == BYTES, 600)
        there.transport.write(BYTES)
        quiet[1].transport.write(b"and you?")
        self.until(lambda: here.received == BYTES and quiet[0].received, 600)
        self.assertEqual([end.reason for end in (here, there, *quiet)], [None] * 4)

    def test_idleConnectionSurvivesPeerBlockedForTwoHours(self) -> None:
        here, there = self.pair()
        self.server.sleep()
        timing = timingOn(True)
        self.wait(timing.silence - timing.testInterval)
        self.server.wake()
        self.wait(10)
        here.transport.write(b"awake?")
        self.until(lambda: there.received)
        self.assertEqual((here.reason, there.reason), (None, None))

    def test_silentlyFailedHostIsLostAfterSeveralTestLinks(self) -> None:
        here, _ = self.pair()
        [group] = linkGroups(self.client, DEVICE).groups()
        asked = []
        real = group.core._core.sendRequest

        def ask(body: Body, *rest: Any) -> None:
            asked.append(type(body))
            real(body, *rest)

        self.patch(group.core._core, "sendRequest", ask)
        self.server.die(silently=True)
        begun = self.client.seconds()
        self.until(lambda: here.reason, timingOn(True).silence + 1000)
        self.assertEqual(here.reason, ConnectionLost)
        self.assertGreaterEqual(self.client.seconds() - begun, timingOn(True).silence)
        self.assertGreaterEqual(asked.count(TestLink), 5)

    def test_unacknowledgedDataToFailedHostEndsAfter15Minutes(self) -> None:
        here, _ = self.pair()
        self.server.die(silently=True)
        here.transport.write(b"hello")
        begun = self.client.seconds()
        self.until(lambda: here.reason, 9000)
        self.assertEqual(here.reason, ConnectionLost)
        self.assertApproximates(self.client.seconds() - begun, 1000, 200)


class BusyWhileAskedTests(RaceTestCase):
    """A peer that is busy while it should answer CONFIRM RKEY, within the time of a CLC handshake."""

    def setUp(self) -> None:
        super().setUp()
        self.fill(MOST_ELEMENTS)

    def fill(self, count: int) -> None:
        """Use all elements of the last buffer, so that the next connection needs a new one at each end."""
        pairs = [self.connect() for _ in range(count)]
        self.until(lambda: all(here.mode and there.mode for here, there, _ in pairs))

    def groupOn(self, host: Host) -> LinkGroup:
        """Return the only link group of a host."""
        [group] = self.groupsOf[host].groups()
        return group

    def connectWhileBusy(self, asking: Host, busy: Host, seconds: float) -> tuple[Listener, Listener]:
        """Connect; when the host C{asking} sends CONFIRM RKEY, the host C{busy} sleeps for some seconds."""
        group = self.groupOn(asking)
        confirm = group.core.confirmRKey

        def confirmRKey(*words: Any) -> None:
            confirm(*words)
            busy.sleep()
            self.world.clock.callLater(seconds, busy.wake)

        patch = self.patch(group.core, "confirmRKey", confirmRKey)
        here, there, _ = self.connect()
        self.until(lambda: here.mode and there.mode, 30.0)
        patch.restore()
        return here, there

    def answersAfter(self, asking: Host, busy: Host) -> None:
        for seconds in (3.0, 4.0, 4.8):
            with self.subTest(seconds=seconds):
                here, there = self.connectWhileBusy(asking, busy, seconds)
                self.assertEqual((here.mode, there.mode), ("SMC-R", "SMC-R"))
                self.fill(MOST_ELEMENTS - 1)

    def test_slowClientConfirmsRKeyAndUsesSMC(self) -> None:
        self.answersAfter(self.server, self.client)

    def test_slowServerConfirmsRKeyAndUsesSMC(self) -> None:
        self.answersAfter(self.client, self.server)


class BlockedInConnectionMadeTests(RaceTestCase):
    """Processes that share memory, one of which is busy from C{connectionMade} on."""

    hosts = 2

    def host(self, number: int) -> Host:
        if number == 1:
            self.memory = SimulatedMemory(self.world.clock)
        return super().host(number)

    def groups(self, host: Host) -> LinkGroups:
        host._makeDevice = lambda: self.memory.device(cast(SharingReactor, host), host.address)
        return super().groups(host)

    def check(self, isServerBusy: bool) -> None:
        """Connect; one end blocks in C{connectionMade}, and the other one writes and closes."""

        def writeAndClose(listener: Listener) -> None:
            listener.transport.write(BYTES[:10_000])
            listener.transport.loseConnection()

        busy = self.server if isServerBusy else self.client
        ends = [Listener(writeAndClose), Listener(lambda _: busy.sleep())]
        self.connect(*(ends if isServerBusy else reversed(ends)))
        self.until(lambda: ends[0].reason and busy.isAsleep)
        busy.wake()
        self.until(lambda: ends[1].hasEnded)
        self.assertEqual([end.mode for end in ends], ["SMC-R"] * 2)
        self.assertEqual((ends[0].reason, ends[1].received), (ConnectionDone, BYTES[:10_000]))

    def checkAll(self, isServerBusy: bool, others: int) -> None:
        """Check with several pairs of processes, between which messages are more or less late."""
        for delaySeconds in (1e-5, 0.1, 1.0, 1.0, 1.0):
            self.hosts += 2
            self.client, self.server = self.host(self.hosts - 1), self.host(self.hosts)
            for _ in range(others):
                self.pair()
            self.memory.faults = MemoryFaults(delaySeconds=delaySeconds)
            self.check(isServerBusy)

    def test_firstConnectionToBusyServer(self) -> None:
        self.checkAll(True, 0)

    def test_firstConnectionOfBusyClient(self) -> None:
        self.checkAll(False, 0)

    def test_firstConnectionWithNewBufferToBusyServer(self) -> None:
        self.checkAll(True, MOST_ELEMENTS)

    def test_firstConnectionWithNewBufferOfBusyClient(self) -> None:
        self.checkAll(False, MOST_ELEMENTS)
