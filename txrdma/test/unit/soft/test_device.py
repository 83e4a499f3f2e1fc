"""
The software device as a whole: its interfaces, strings, events, and closing.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from txrdma.iba.types import GID, MACAddress, MTU
from txrdma.iba.verbs import (
    AddressVector,
    AsyncEventKind,
    Capacity,
    PortState,
    QPKind,
)
from txrdma.interfaces import AsyncEvent
from txrdma.soft import device as devices
from txrdma.soft.core.netdev import (
    activeMTU,
    laneCount,
    LONGEST_DATAGRAM,
    longestDatagram,
    pathMTU,
    softMAC,
    udpPort,
)
from txrdma.soft.device import SoftDevice
from txrdma.soft.ports import SoftPort


class AddressTests(SynchronousTestCase):
    def test_MACIsLocallyAdministeredAndNamesPort(self) -> None:
        mac = softMAC("192.0.2.1", 0x1234)
        self.assertEqual(str(mac), "02:00:02:01:12:34")
        self.assertEqual(softMAC("2001:db8::1", 0x1234).raw[4:], b"\x12\x34")
        self.assertNotEqual(softMAC("2001:db8::1", 1), softMAC("2001:db8::2", 1))

    def test_portOfMAC(self) -> None:
        for address in ("127.0.0.1", "2001:db8::1"):
            gid = GID.fromIP(address)
            self.assertEqual(udpPort(AddressVector(gid, dmac=softMAC(address, 50_000))), 50_000)
            self.assertEqual(udpPort(AddressVector(gid, dmac=softMAC("192.0.2.9", 50_000))), 4791)
            self.assertEqual(udpPort(AddressVector(gid)), 4791)
            foreign = MACAddress.fromString("52:54:00:12:34:56")
            self.assertEqual(udpPort(AddressVector(gid, dmac=foreign)), 4791)

    def test_MTULeavesSpaceForHeaders(self) -> None:
        self.assertEqual(pathMTU(1500, False), MTU.MTU_1024)
        self.assertEqual(pathMTU(9000, True), MTU.MTU_4096)
        self.assertEqual(pathMTU(4096 + 64, False), MTU.MTU_4096)
        self.assertEqual(pathMTU(4096 + 64, True), MTU.MTU_2048)
        self.assertEqual(activeMTU(9000, False, MTU.MTU_512), MTU.MTU_512)
        self.assertEqual(activeMTU(1500, False, MTU.MTU_4096), MTU.MTU_1024)
        self.assertEqual(activeMTU(68, False, None), MTU.MTU_512)
        self.assertEqual(activeMTU(None, False, MTU.MTU_4096), MTU.MTU_4096)
        self.assertEqual(activeMTU(None, False, None), MTU.MTU_1024)

    def test_datagramLengthIsInterfacesMTUUnlessLimited(self) -> None:
        self.assertEqual(longestDatagram(1500, False, None), 1500 - 20 - 44)
        self.assertEqual(longestDatagram(1500, True, None), 1500 - 40 - 44)
        self.assertEqual(longestDatagram(65536, False, None), LONGEST_DATAGRAM)
        self.assertEqual(longestDatagram(1500, False, MTU.MTU_512), 512)
        self.assertEqual(longestDatagram(None, False, None), 1024)
        for mtu in range(576, 10000):
            self.assertEqual(MTU.fitting(longestDatagram(mtu, True, None)), activeMTU(mtu, True, None))

    def test_laneCountByRate(self) -> None:
        gigabits = {0: 0, 1: 1, 10: 1, 20: 4, 25: 1, 40: 4, 100: 4}
        self.assertEqual({rate: laneCount(rate * 1_000_000_000) for rate in gigabits}, gigabits)


class DeviceTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.clock = Clock()
        self.device = SoftDevice(self.clock, [SoftPort("127.0.0.1", 4791, [], MTU.MTU_2048)])
        self.addCleanup(self.device.close)
        self.events: list[AsyncEvent] = []
        self.device.subscribe(self.events.append)

    def test_portWithoutInterfaceIsActive(self) -> None:
        port = self.device.portAttributes(1)
        self.assertEqual((port.activeMTU, port.mac), (MTU.MTU_2048, softMAC("127.0.0.1", 4791)))
        self.device.close()
        self.assertEqual(self.device.portAttributes(1).state, PortState.DOWN)

    def test_eventsArriveInOrderAndListenerErrorsAreIsolated(self) -> None:
        first, second = AsyncEvent(AsyncEventKind.GID_CHANGE, 1), AsyncEvent(AsyncEventKind.PORT_ERROR, 1)

        def fails(event: AsyncEvent) -> None:
            raise RuntimeError(event)

        self.device.subscribe(fails)
        later: list[AsyncEvent] = []
        self.device.subscribe(later.append)
        self.device.notify(first)
        self.device.notify(second)
        self.assertEqual(self.events, [])
        self.clock.advance(0)
        self.assertEqual((self.events, later), ([first, second], [first, second]))
        self.assertEqual(len(self.flushLoggedErrors(RuntimeError)), 2)

    def test_removedListenerGetsNoMoreEvents(self) -> None:
        stops: list[Callable[[], None]] = []
        self.device.subscribe(lambda event: stops[0]())
        removed: list[AsyncEvent] = []
        stops.append(self.device.subscribe(removed.append))
        self.device.notify(AsyncEvent(AsyncEventKind.GID_CHANGE, 1))
        self.clock.advance(0)
        self.assertEqual((len(self.events), removed), (1, []))

    def test_waitingEventsAreDeliveredBeforeRest(self) -> None:
        self.device.notify(AsyncEvent(AsyncEventKind.GID_CHANGE, 1))
        self.device.rest()
        self.assertEqual((len(self.events), self.clock.getDelayedCalls()), (1, []))

    def test_closedDeviceLeavesNoDelayedCalls(self) -> None:
        self.device.notify(AsyncEvent(AsyncEventKind.GID_CHANGE, 1))
        self.device.close()
        self.device.notify(AsyncEvent(AsyncEventKind.GID_CHANGE, 1))
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_queuePairNumbersAreNotReusedSoon(self) -> None:
        """
        A new queue pair's number differs from current and recent ones.

        Peers' communication managers remember old numbers for a while, and refuse them as stale.
        """
        device = self.device
        domain, channel = device.createProtectionDomain(), device.createChannel()
        queue = device.createCompletionQueue(10, channel)
        drawn = iter((77, 77, 77, 1, 88, 77, 88, 99))
        self.patch(devices, "randbelow", lambda _: next(drawn))
        first, second = (domain.createQueuePair(QPKind.RC, queue, queue, Capacity()) for _ in range(2))
        first.close()
        third = domain.createQueuePair(QPKind.RC, queue, queue, Capacity())
        self.assertEqual((first.number, second.number, third.number), (77, 88, 99))

    def test_closeReleasesChildrenAndDescriptors(self) -> None:
        before = len(os.listdir("/dev/fd"))
        device = SoftDevice(self.clock, [SoftPort("127.0.0.1", 4792, [])])
        from txrdma.testing.verbs.ends import End

        ends = [End(device) for _ in range(3)]
        ends[1].close()
        device.close()
        self.assertEqual(len(os.listdir("/dev/fd")), before)
        self.assertEqual(ends[0].channel.fileno(), -1)
