"""
Devices that share UDP port 4791 of an address, with the kernel's sockets and filter.
"""

from __future__ import annotations

import contextlib
import os
import socket
from random import Random
from typing import Any
from unittest import skipUnless

from twisted.internet import reactor
from twisted.logger import capturedLogs
from twisted.trial.unittest import TestCase

from txrdma.error import ResourceExhausted
from txrdma.iba.types import ROCE_PORT
from txrdma.soft.device import openSoftDevice, SoftDevice
from txrdma.soft.host.member import PortMember
from txrdma.soft.host.shares import hostName
from txrdma.soft.rc.roce import RoCEPort
from txrdma.testing.reactors import waitUntil

PACKETS = 20


def memberOf(device: SoftDevice) -> PortMember:
    """The device's part in sharing the port."""
    member = device.ports[0].member
    assert member is not None
    return member


def badPackets(device: SoftDevice) -> int:
    """Packets that the device's socket has received with a wrong ICRC, as those of these tests have."""
    (port,) = (each for each in device.routes if isinstance(each, RoCEPort))
    return port.counters.wrongICRC


class SharingTests(TestCase):
    """Several devices in one process."""

    def setUp(self) -> None:
        random = Random()
        self.address = f"127.{'.'.join(str(random.randrange(2, 250)) for _ in range(3))}"
        self.sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.addCleanup(self.sender.close)

    def open(self, *more: str) -> SoftDevice:
        """Open another device at the address."""
        device = openSoftDevice(reactor, (self.address, *more), route="rocev2")
        self.addCleanup(device.close)
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
                for route in device.routes:
                    assert isinstance(route, RoCEPort)
                    route.poll()
            return [badPackets(device) for device in devices] == [each + PACKETS for each in before]

        await waitUntil(reactor, isRight)

    async def test_filter(self) -> None:
        """Each socket gets the packets of its device, also after devices have closed."""
        devices = [self.open() for _ in range(5)]
        self.assertEqual({device.port for device in devices}, {ROCE_PORT})
        self.assertEqual(len({device.share for device in devices}), 5)
        self.assertEqual([memberOf(device).isCoordinator for device in devices], [True] + [False] * 4)
        await self.isSettled(*devices)
        devices.pop(1).close()
        await self.isSettled(*devices)
        devices.append(self.open())
        await self.isSettled(*devices)

    async def test_takeover(self) -> None:
        """When the coordinator closes, another device takes over, and its filter is right."""
        devices = [self.open() for _ in range(4)]
        await self.isSettled(*devices)
        for _ in range(3):
            (coordinator,) = (device for device in devices if memberOf(device).isCoordinator)
            devices.remove(coordinator)
            coordinator.close()
            await waitUntil(reactor, lambda: any(memberOf(device).isCoordinator for device in devices))
            await self.isSettled(*devices)

    async def test_stopped(self) -> None:
        """A coordinator that does not answer is replaced, and becomes a member when it does again."""
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

    async def test_invalidMessages(self) -> None:
        """A member whose message is invalid is disconnected; the others stay."""
        devices = [self.open() for _ in range(2)]
        await self.isSettled(*devices)
        bad = (b"\x00", b"\x02\x80\0\0" + bytes(8), b"\x01\0\x09\x20", b"\x01\0\x01\x00", b"\x05" + bytes(19))
        for message in bad:
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as line:
                line.connect(hostName(self.address, 0))
                line.setblocking(False)
                line.send(message)
                ended: list[bytes] = []

                def isEnded(line: socket.socket = line, ended: list[bytes] = ended) -> bool:
                    with contextlib.suppress(BlockingIOError):
                        ended.append(line.recv(100))
                    return bool(ended)

                await waitUntil(reactor, isEnded)
                self.assertEqual((message, ended), (message, [b""]))
        self.assertTrue(memberOf(devices[0]).isCoordinator)
        await self.isSettled(*devices)

    async def test_claims(self) -> None:
        """A service ID belongs to one device of an address at a time, and to one of another address."""
        one, other = self.open(), self.open()
        release = one.claimService(0x42)
        self.assertRaises(ResourceExhausted, other.claimService, 0x42)
        other.claimService(0x43)()
        release()
        other.claimService(0x42)
        one.close()
        self.assertRaises(ResourceExhausted, self.open().claimService, 0x42)

    async def test_twoAddresses(self) -> None:
        """A device with two addresses has the same share at both; a claim is for both or for none."""
        second = "127.251." + self.address.partition(".")[2].partition(".")[2]
        both = self.open(second)
        self.assertEqual({port.member.share for port in both.ports if port.member}, {both.share})
        alone = openSoftDevice(reactor, second, route="rocev2")
        self.addCleanup(alone.close)
        alone.claimService(0x42)
        self.assertRaises(ResourceExhausted, both.claimService, 0x42)
        self.open().claimService(0x42)()

    @skipUnless(hasattr(os, "seteuid") and os.geteuid() == 0, "needs root, to act as another user")
    async def test_otherUser(self) -> None:
        """If a process of another user claims to be the coordinator, the device does not use port 4791."""
        name = hostName(self.address, 0)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as impostor:
            os.seteuid(65534)
            try:
                impostor.bind(name)
                impostor.listen()
            finally:
                os.seteuid(0)
            with capturedLogs() as events:
                device = self.open()
            self.assertNotEqual(device.port, ROCE_PORT)
            self.assertIn("user 65534 claims to coordinate", str(events))
            impostor.setblocking(False)
            connected, _ = impostor.accept()
            with connected:
                self.assertEqual(connected.recv(100), b"")  # nothing was sent to it
        self.assertEqual(self.open().port, ROCE_PORT)
