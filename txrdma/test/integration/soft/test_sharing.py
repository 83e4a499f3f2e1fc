"""
Devices that share UDP port 4791 of an address, with the kernel's sockets and filter.
"""

from __future__ import annotations

import os
import socket
import sys
from functools import partial
from random import Random
from typing import Any
from unittest import skipUnless

from twisted.internet import reactor
from twisted.trial.unittest import TestCase

from txrdma.error import DeviceUnavailable, ResourceExhausted
from txrdma.iba.types import ROCE_PORT
from txrdma.iba.verbs import AddressVector, Completion, Status
from txrdma.soft.device import openSoftDevice, SoftDevice
from txrdma.soft.host import forwarding
from txrdma.soft.host import member as members
from txrdma.soft.host._filter import filterProgram
from txrdma.soft.host.member import PortMember
from txrdma.soft.host.names import hostName, isShareTaken
from txrdma.soft.rc import udp, wellknown
from txrdma.soft.shared.sharedmemoryport import SharedMemoryPort
from txrdma.soft.shared.unixpackets import Line
from txrdma.test.support.soft.management import message
from txrdma.test.support.soft.pairs import End
from txrdma.test.support.soft.sharingports import memberOf, sharingPortOf, wellKnownOf
from txrdma.testing.reactors import waitUntil

PACKETS = 20


def badPackets(device: SoftDevice) -> int:
    """Packets that the device's sockets have received with a wrong ICRC, as those of these tests have."""
    return wellKnownOf(device).counters.wrongICRC


def isEnded(line: socket.socket) -> bool:
    """Whether the peer has closed a connection, without sending anything."""
    try:
        return line.recv(100) == b""
    except BlockingIOError:
        return False


class AddressedEnd(End):
    """An end whose peers know its address, and not its own UDP port."""

    def vector(self) -> AddressVector:
        return AddressVector(self.device.gids(1)[0])


class DependenceTests(TestCase):
    """Which connections depend on port 4791."""

    def setUp(self) -> None:
        address = f"127.{'.'.join(str(Random().randrange(2, 250)) for _ in range(3))}"
        self.devices = [openSoftDevice(reactor, address, route="rocev2") for _ in range(2)]
        for device in self.devices:
            self.addCleanup(device.close)

    async def writes(self, kind: type[End]) -> None:
        """Connect the devices, and write from one to the other."""
        one, other = ends = [kind(device) for device in self.devices]
        one.join(other, timeout=18)
        other.join(one, timeout=18)
        one.region.view[:5] = b"hello"
        one.write(other, 1, 0, 5)
        completions: list[Completion] = []

        def isComplete() -> bool:
            completions.extend(one.poll())
            return bool(completions)

        await waitUntil(reactor, isComplete)
        self.assertEqual([each.status for each in completions], [Status.SUCCESS])
        self.assertEqual(bytes(ends[1].region.view[:5]), b"hello")

    async def test_devicesThatKnowPortsDoNotUse4791(self) -> None:
        await self.writes(End)
        self.assertEqual([sharingPortOf(device).wellKnown for device in self.devices], [None, None])

    async def test_devicesThatKnowAddressesConnectThrough4791(self) -> None:
        await self.writes(AddressedEnd)
        self.assertNotIn(None, [sharingPortOf(device).wellKnown for device in self.devices])

    async def test_socketBelongsToNamespaceOfDevice(self) -> None:
        made = [sharingPortOf(device)._unbound for device in self.devices]
        await self.writes(AddressedEnd)
        self.assertEqual([memberOf(device)._bound for device in self.devices], made)

    async def test_otherProgramAt4791FailsOnlyConnectionsThatNeedIt(self) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
            taken.bind((self.devices[0].address, ROCE_PORT))
            await self.writes(End)
            with self.assertRaises(DeviceUnavailable):
                await self.writes(AddressedEnd)


@skipUnless(sys.platform == "linux", "shared memory is Linux's")
class MeetingTests(TestCase):
    """How devices at one address find each other's shared memory."""

    def test_furtherQueuePairsUseConnectionOfProcess(self) -> None:
        address = f"127.{'.'.join(str(Random().randrange(2, 250)) for _ in range(3))}"
        devices = [openSoftDevice(reactor, address) for _ in range(2)]
        for device in devices:
            self.addCleanup(device.close)
        routes = devices[0].ports[0].routes
        (port,) = (each for each in routes if isinstance(each, SharedMemoryPort))
        tried: list[tuple[str, int]] = []
        connect = port.rendezvous.connect

        def noted(address: str, number: int) -> Line | None:
            tried.append((address, number))
            return connect(address, number)

        self.patch(port.rendezvous, "connect", noted)
        for expected in (2, 2):
            one, other = ends = [AddressedEnd(device) for device in devices]
            one.join(other)
            other.join(one)
            self.assertEqual([each.qp.route for each in ends], ["shared-memory"] * 2)
            self.assertEqual(len(tried), expected, tried)


class SharingTests(TestCase):
    """Several devices in one process."""

    def setUp(self) -> None:
        random = Random()
        self.address = f"127.{'.'.join(str(random.randrange(2, 250)) for _ in range(3))}"
        self.sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.addCleanup(self.sender.close)

    def open(self, *more: str) -> SoftDevice:
        """Open another device at the address, which receives at port 4791."""
        device = openSoftDevice(reactor, (self.address, *more), route="rocev2")
        self.addCleanup(device.close)
        for number in range(1, device.portCount + 1):
            wellKnownOf(device, number)
        return device

    async def isSettled(self, *devices: SoftDevice) -> None:
        """Each device's socket receives the packets for its queue pairs, and no others."""

        def isRight() -> bool:
            before = [badPackets(device) for device in devices]
            for device in devices:
                assert device.share is not None
                packet = bytes(5) + bytes((device.share,)) + bytes(54)
                for _ in range(PACKETS):
                    self.sender.sendto(packet, (self.address, ROCE_PORT))
            for device in devices:
                wellKnownOf(device).poll()
            return [badPackets(device) for device in devices] == [each + PACKETS for each in before]

        await waitUntil(reactor, isRight)

    async def test_eachSocketGetsPacketsOfItsDeviceOnly(self) -> None:
        devices = [self.open() for _ in range(5)]
        self.assertEqual(len({device.share for device in devices}), 5)
        self.assertEqual([memberOf(device).isCoordinator for device in devices], [True] + [False] * 4)
        await self.isSettled(*devices)
        devices.pop(1).close()
        await self.isSettled(*devices)
        devices.append(self.open())
        await self.isSettled(*devices)

    async def test_successorOfCoordinatorHasRightFilter(self) -> None:
        devices = [self.open() for _ in range(4)]
        await self.isSettled(*devices)
        for _ in range(3):
            (coordinator,) = (device for device in devices if memberOf(device).isCoordinator)
            devices.remove(coordinator)
            coordinator.close()
            await waitUntil(reactor, lambda: any(memberOf(device).isCoordinator for device in devices))
            await self.isSettled(*devices)

    def test_devicesMayBindPortAtSameTime(self) -> None:
        """Whenever a device binds a socket to the port, another one can do so, too."""
        attempts: list[OSError | None] = []

        class Socket(socket.socket):
            def bind(self, name: Any) -> None:
                super().bind(name)
                with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
                    other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
                    try:
                        other.bind(name)
                    except OSError as error:
                        attempts.append(error)
                    else:
                        attempts.append(None)

        device = openSoftDevice(reactor, self.address, route="rocev2")
        self.addCleanup(device.close)
        for module in (udp, wellknown):
            self.patch(module, "udpSocket", lambda address: Socket(socket.AF_INET, socket.SOCK_DGRAM))
        port = sharingPortOf(device)
        self.patch(port, "_unbound", None)
        port._join()
        self.assertEqual(attempts, [None])

    def test_filterIsInstalledAtOnce(self) -> None:
        """Others need a filter for their probes, even if the first process does not run its reactor yet."""
        filters: list[Any] = []
        self.patch(members, "attachFilter", lambda bound, program: filters.append(program))
        self.open()
        self.assertEqual(filters, [filterProgram({}, 0)])

    def test_failedStart(self) -> None:
        """A device that cannot become the coordinator leaves no name."""
        self.patch(members, "Coordinator", partial(divmod, 1, 0))
        with self.assertRaises(TypeError):
            self.open()
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as name:
            name.bind(hostName(self.address, 0))

    async def test_lineToEndingProcess(self) -> None:
        """
        A process that ends may accept a last line before its name is free. That delays no takeover: another
        attempt follows soon.
        """
        self.patch(members, "_UNANSWERED_SECONDS", 60.0)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as ending:
            ending.bind(hostName(self.address, 0))
            ending.listen(4)
            device = self.open()
        await waitUntil(reactor, lambda: memberOf(device).isCoordinator)

    async def test_coordinatorEndsWhileMembersPingIt(self) -> None:
        """Members that notice the end of the coordinator when they ping it go on seeking another one."""
        devices = [self.open() for _ in range(3)]
        await self.isSettled(*devices)
        devices.pop(0).close()
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as ending:
            ending.bind(hostName(self.address, 0))  # its process still has the name
            for device in devices:
                memberOf(device)._sendPing(60.0)
        await waitUntil(reactor, lambda: any(memberOf(device).isCoordinator for device in devices))
        await self.isSettled(*devices)

    async def test_silentCoordinatorIsReplacedAndBecomesMember(self) -> None:
        self.patch(members, "PING_SECONDS", 0.3)
        self.patch(members, "FIRST_PING_SECONDS", 0.2)
        devices = [self.open() for _ in range(3)]
        await self.isSettled(*devices)
        stopped, lines = memberOf(devices[0]), list(memberOf(devices[0])._lines)
        readers: list[Any] = [stopped._listener, *(line.line for line in lines)]
        for each in readers:
            each.setReading(False)
        await waitUntil(reactor, lambda: any(memberOf(device).isCoordinator for device in devices[1:]))
        await self.isSettled(*devices[1:])
        for each in readers:
            each.setReading(True)
        await waitUntil(reactor, lambda: not stopped.isCoordinator)
        await self.isSettled(*devices)

    async def test_membersFollowNextCoordinator(self) -> None:
        """
        A coordinator that accepts no further lines, such as one without descriptors, is replaced by the next
        device, also for those members whose pings it still answers.
        """
        self.patch(members, "PING_SECONDS", 0.3)
        self.patch(members, "FIRST_PING_SECONDS", 0.2)
        devices = [self.open() for _ in range(3)]
        await self.isSettled(*devices)
        former = memberOf(devices[0])
        listener: Any = former._listener
        listener.setReading(False)
        devices.append(self.open())
        await waitUntil(reactor, lambda: memberOf(devices[3]).isCoordinator and not former.isCoordinator)
        await self.isSettled(*devices)
        self.assertEqual([memberOf(device).isCoordinator for device in devices], [False] * 3 + [True])

    async def test_coordinatorLearnsOfUnknownSuccessor(self) -> None:
        """A device that takes a later name without having been a member becomes the only coordinator."""
        devices = [self.open() for _ in range(2)]
        await self.isSettled(*devices)
        former, successor = map(memberOf, devices)
        successor._leave()
        await waitUntil(reactor, lambda: not former._lines)
        successor._seek(1)
        await waitUntil(reactor, lambda: not former.isCoordinator)
        await self.isSettled(*devices)

    async def test_laterNameTakenAtSameTime(self) -> None:
        """Of two devices that take different names at the same time, one becomes a member."""
        devices = [self.open() for _ in range(3)]
        await self.isSettled(*devices)
        devices.pop(0).close()
        one, other = map(memberOf, devices)
        one._leave()
        listener: Any = vars(members)["LocalListener"]

        def alongside(*arguments: Any) -> Any:
            self.patch(members, "LocalListener", listener)
            other._leave()
            other._seek(1)
            return listener(*arguments)

        self.patch(members, "LocalListener", alongside)
        one._seek()
        self.assertEqual([one.isCoordinator, other.isCoordinator], [False, True])
        await self.isSettled(*devices)

    async def test_memberWithInvalidMessageIsDisconnectedAlone(self) -> None:
        devices = [self.open() for _ in range(2)]
        await self.isSettled(*devices)
        bad = (b"\x00", b"\x02\x80\0\0" + bytes(8), b"\x01\0\x09\x20", b"\x01\0\x01\x00", b"\x05" + bytes(19))
        for raw in bad:
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as line:
                line.connect(hostName(self.address, 0))
                line.setblocking(False)
                line.send(raw)
                await waitUntil(reactor, partial(isEnded, line))
        self.assertTrue(memberOf(devices[0]).isCoordinator)
        await self.isSettled(*devices)

    async def test_connectionsBeyondLimitAreClosedExceptMembers(self) -> None:
        devices = [self.open() for _ in range(2)]
        self.patch(members, "LINES", 1)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as line:
            line.connect(hostName(self.address, 0))
            line.setblocking(False)
            await waitUntil(reactor, partial(isEnded, line))
        await self.isSettled(*devices)

    async def test_serviceIDBelongsToOneDeviceOfAddress(self) -> None:
        one, other = self.open(), self.open()
        release = one.claimService(0x42)
        self.assertRaises(ResourceExhausted, other.claimService, 0x42)
        other.claimService(0x43)()
        release()
        other.claimService(0x42)
        one.close()
        self.assertRaises(ResourceExhausted, self.open().claimService, 0x42)

    def test_shareIsNotTakenIfAddressCannotBeBound(self) -> None:
        self.assertFalse(isShareTaken("fe80::1", 7))

    async def test_newCoordinatorDoesNotRejectForBusyProcess(self) -> None:
        devices = [self.open() for _ in range(3)]
        await self.isSettled(*devices)
        release = devices[1].claimService(0x42)
        busy, successor = memberOf(devices[1]), memberOf(devices[2])
        busy.rest()
        memberOf(devices[0]).close()
        successor.setReceiving(True)
        await waitUntil(reactor, lambda: successor.isCoordinator)
        request = memoryview(message(0x10, bytes(8) + (0x42).to_bytes(8, "big")))
        reply = memoryview(message(0x13, bytes(4) + bytes((busy.share, 0, 0, 1))))

        def areTaken() -> list[bool]:
            return [successor.redirect(1, each, ("192.0.2.1", 50_000)) for each in (request, reply)]

        self.assertEqual(areTaken(), [True, True])
        release()
        self.assertEqual(areTaken(), [False, True])
        devices[1].close()
        self.assertEqual(areTaken(), [False, False])

    def beforeReport(self, count: int = 1) -> tuple[PortMember, PortMember, list[bytes], list[bytes]]:
        """
        Pass replies to a coordinator before its reactor knows of their device, whose ENTER waits in a socket.

        @return: the coordinator, the device's member, the replies, and what the device receives.
        """
        coordinator = memberOf(self.open())
        self.assertTrue(coordinator.isCoordinator)
        device = self.open()
        received: list[bytes] = []
        self.patch(
            memberOf(device)._forwarder, "forwarded", lambda source, packet: received.append(bytes(packet))
        )
        share = memberOf(device).share
        replies = [message(0x13, bytes(4) + bytes((share, 0, 0, number))) for number in range(count)]
        for reply in replies:
            self.assertTrue(coordinator.redirect(1, memoryview(reply), ("192.0.2.1", 50_000)))
        return coordinator, memberOf(device), replies, received

    async def test_replyBeforeReportIsPassedOnAfterIt(self) -> None:
        _, _, replies, received = self.beforeReport()
        await waitUntil(reactor, lambda: received)
        self.assertEqual(received, replies)

    async def test_oldestStoredPacketsBeyondLimitAreDropped(self) -> None:
        _, _, replies, received = self.beforeReport(forwarding.MOST_AWAITED + 3)
        await waitUntil(reactor, lambda: replies[-1] in received)
        self.assertEqual(received, replies[3:])

    async def test_packetStoredLongerThanSenderWaitsIsDropped(self) -> None:
        self.patch(forwarding, "AWAITED_SECONDS", -1.0)
        coordinator, member, _, received = self.beforeReport()
        await waitUntil(reactor, lambda: not coordinator._forwarder._awaited)
        member.receiveNow()
        self.assertEqual(received, [])

    async def test_reportsOfOthersDoNotExtendStorage(self) -> None:
        self.patch(forwarding, "AWAITED_SECONDS", 0.1)
        devices = [self.open() for _ in range(3)]
        await self.isSettled(*devices)
        coordinator, silent, other = map(memberOf, devices)
        silent.rest()
        reply = memoryview(message(0x13, bytes(4) + bytes((silent.share, 0, 0, 1))))

        def isStored() -> bool:
            coordinator.redirect(1, reply, ("192.0.2.1", 50_000))
            return bool(coordinator._forwarder._awaited)

        def isDropped() -> bool:
            other.setReceiving(not other._isReceiving)
            return not coordinator._forwarder._awaited

        await waitUntil(reactor, isStored)
        await waitUntil(reactor, isDropped)

    async def test_twoAddressesShareShareAndClaims(self) -> None:
        second = "127.251." + self.address.partition(".")[2].partition(".")[2]
        both = self.open(second)
        self.assertEqual({wellKnownOf(both, number).member.share for number in (1, 2)}, {both.share})
        alone = openSoftDevice(reactor, second, route="rocev2")
        self.addCleanup(alone.close)
        wellKnownOf(alone)
        alone.claimService(0x42)
        self.assertRaises(ResourceExhausted, both.claimService, 0x42)
        self.open().claimService(0x42)()

    @skipUnless(hasattr(os, "seteuid") and os.geteuid() == 0, "needs root, to act as another user")
    async def test_coordinatorOfOtherUserIsNotUsed(self) -> None:
        name = hostName(self.address, 0)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as impostor:
            os.seteuid(65534)
            try:
                impostor.bind(name)
                impostor.listen()
            finally:
                os.seteuid(0)
            with self.assertRaisesRegex(DeviceUnavailable, "user 65534 claims to coordinate"):
                self.open()
            impostor.setblocking(False)
            connected, _ = impostor.accept()
            with connected:
                self.assertEqual(connected.recv(100), b"")  # no message was sent to the other process
        self.assertTrue(memberOf(self.open()).isCoordinator)

    @skipUnless(hasattr(os, "seteuid") and os.geteuid() == 0, "needs root, to act as another user")
    async def test_memberOfOtherUserIsClosedWithoutBytes(self) -> None:
        device = self.open()
        name = hostName(self.address, 0)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as line:
            os.seteuid(65534)
            try:
                line.connect(name)
            finally:
                os.seteuid(0)
            line.setblocking(False)
            await waitUntil(reactor, partial(isEnded, line))
        self.assertEqual(memberOf(device)._lines, {})
