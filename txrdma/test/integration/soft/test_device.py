"""
The software device as a whole: its interfaces, strings, events, and closing.
"""

from __future__ import annotations

import gc
import os
import shutil
import socket
import sys
import tempfile
from typing import cast
from unittest import skipUnless

from zope.interface.verify import verifyObject

from twisted.internet.testing import MemoryReactorClock
from twisted.logger import ILogObserver, LogEvent, Logger
from twisted.plugin import IPlugin
from twisted.trial.unittest import SynchronousTestCase

from txrdma.error import DeviceUnavailable, ResourceExhausted
from txrdma.iba.types import GID, MTU
from txrdma.iba.verbs import CM_SUPPORTED, QPKind
from txrdma.interfaces import IVerbsDeviceStringParser
from txrdma.kit.logs import RateLimitedLogger
from txrdma.soft import device, opening
from txrdma.soft.core.netdev import portOfShare, softMAC
from txrdma.soft.device import openSoftDevice, SoftDevice
from txrdma.soft.rc.roce import RoCEPort
from txrdma.soft.shared._rendezvous import meetingName, rendezvousName
from txrdma.soft.strings import SoftDeviceStringParser
from txrdma.test.support.processes import loopbackAddress
from txrdma.test.support.soft.neighbours import Added
from txrdma.test.support.soft.pairs import End
from txrdma.unix.socketdirectory import SocketDirectory


class OpeningTests(SynchronousTestCase):
    """Devices from strings, with real sockets on the loopback interface, on a reactor that never runs."""

    def setUp(self) -> None:
        self.parser = SoftDeviceStringParser()
        self.reactor = MemoryReactorClock()

    def open(self, *args: str, **kwargs: str) -> SoftDevice:
        device = self.parser.parseDevice(self.reactor, *args, **kwargs)
        assert isinstance(device, SoftDevice)
        self.addCleanup(device.close)
        return device

    def test_parserIsPlugin(self) -> None:
        self.assertTrue(verifyObject(IVerbsDeviceStringParser, self.parser))
        self.assertTrue(verifyObject(IPlugin, self.parser))

    def test_eachDeviceHasItsPortAndShare(self) -> None:
        one, other = self.open(), self.open()
        self.assertNotEqual(one.port, other.port)
        self.assertEqual([portOfShare(device.share or 0) for device in (one, other)], [one.port, other.port])
        self.assertRaises(DeviceUnavailable, self.open, port=str(other.port))
        self.assertEqual(other.gids(1), (GID.fromIP("127.0.0.1"),))

    def test_portHasOneQueuePair1AtATime(self) -> None:
        device = self.open()
        one, other, last = (End(device, QPKind.GSI) for _ in range(3))
        one.open()
        self.assertRaises(ResourceExhausted, other.open)
        one.qp.close()
        last.open()

    def test_port0HasNeitherShareNorCM(self) -> None:
        address = loopbackAddress()
        shy, known, alone = (self.open(address, port=port) for port in ("0", "24792", "4791"))
        self.assertEqual([device.share for device in (shy, known, alone)], [None, 1, None])
        output = [device.portAttributes(1).capabilities & CM_SUPPORTED for device in (shy, known, alone)]
        self.assertEqual(output, [0, CM_SUPPORTED, CM_SUPPORTED])

    def test_deviceTakesAnyPortWhenSharesAreTaken(self) -> None:
        self.patch(opening, "SHARES", 1)
        address = loopbackAddress()
        one, other = self.open(address), self.open(address)
        self.assertEqual([device.share for device in (one, other)], [1, None])
        output = [device.portAttributes(1).capabilities & CM_SUPPORTED for device in (one, other)]
        self.assertEqual(output, [CM_SUPPORTED, 0])

    def test_addressMTUAndRouteAreThoseOfString(self) -> None:
        device = self.open("127.0.0.5", mtu="512", route="rocev2")
        self.assertEqual(device.name, "soft:127.0.0.5")
        self.assertEqual(device.portAttributes(1).activeMTU, MTU.MTU_512)
        self.assertEqual(self.open(address="127.0.0.6").address, "127.0.0.6")

    def test_eachAddressIsPortWithItsGIDMACAndUDPPort(self) -> None:
        device = self.open("127.0.0.7,127.0.0.8", route="rocev2")
        self.assertEqual((device.name, device.portCount), ("soft:127.0.0.7,127.0.0.8", 2))
        self.assertEqual([device.gids(port)[0].ip for port in (1, 2)], ["127.0.0.7", "127.0.0.8"])
        macs = [device.portAttributes(port).mac for port in (1, 2)]
        self.assertEqual(macs, [softMAC(port.address, port.udpPort) for port in device.ports])
        first, second = (port.routes[-1] for port in device.ports)
        assert isinstance(first, RoCEPort) and isinstance(second, RoCEPort)
        self.assertEqual(first.siblings, {1: first, 2: second})
        self.assertIs(second.siblings, first.siblings)

    def test_nothingRemainsOpenIfOneOfSeveralPortsFails(self) -> None:
        added = Added()
        self.assertRaises(DeviceUnavailable, self.open, "127.0.0.7,192.0.2.213")
        self.assertEqual((added.isNothing(), self.reactor.getReaders()), (True, []))

    def test_ipv6AddressIsSpelledInNameAsInStrings(self) -> None:
        try:
            device = self.open("0:0::1")
        except DeviceUnavailable:
            self.skipTest("this host has no IPv6")
        self.assertEqual((device.address, device.name), ("::1", r"soft:\:\:1"))
        self.assertEqual(device.gids(1)[0].ip, "::1")

    def test_addressOfOtherHostIsUnavailable(self) -> None:
        self.assertRaises(DeviceUnavailable, self.open, "192.0.2.213")

    def test_pcap(self) -> None:
        """The file of packets is created immediately; a file that cannot be written is an error."""
        path = self.mktemp()
        self.open(pcap=path).close()
        with open(path, "rb") as file:
            self.assertEqual(len(file.read()), 24)
        for unwritable in ("/nowhere/at/all.pcap", "/dev/full"):
            self.assertRaises(DeviceUnavailable, self.open, pcap=unwritable)

    def test_recordingDeviceHasRoCERouteOnly(self) -> None:
        recording = self.open(pcap=self.mktemp())
        self.assertEqual([type(route).__name__ for route in recording.routes], ["SharingPort"])
        self.assertRaises(ValueError, openSoftDevice, self.reactor, route="shared-memory", pcap=self.mktemp())

    def test_invalidStringRaisesValueErrorWithKeyAndValue(self) -> None:
        for args, kwargs, named in (
            (["nowhere"], {}, "address=nowhere"),
            (["0.0.0.0"], {}, "address=0.0.0.0"),
            (["127.0.0.1,"], {}, "address= "),
            (["127.0.0.1,127.0.0.1"], {}, "address=127.0.0.1,127.0.0.1"),
            (["127.0.0.1", "surplus"], {}, "surplus"),
            (["127.0.0.1"], {"address": "127.0.0.2"}, "address=127.0.0.2"),
            ([], {"port": "http"}, "port=http"),
            ([], {"port": "-1"}, "port=-1"),
            ([], {"port": "65536"}, "port=65536"),
            ([], {"route": "scenic"}, "route=scenic"),
            ([], {"mtu": "1500"}, "mtu=1500"),
            ([], {"pcap": ""}, "pcap="),
            ([], {"pcap": "file", "route": "shared-memory"}, "pcap=file"),
            ([], {"runtime": "here"}, "runtime=here"),
            ([], {"runtime": "/run/txrdma", "route": "rocev2"}, "runtime=/run/txrdma"),
            ([], {"colour": "blue"}, "colour=blue"),
        ):
            error = self.assertRaises(ValueError, self.parser.parseDevice, self.reactor, *args, **kwargs)
            self.assertIn(named, str(error))

    def test_closedDeviceLeavesNothing(self) -> None:
        gc.collect()  # objects left by earlier tests must be closed here, not during the test
        added = Added()
        for route in ("auto", "rocev2", "shared-memory"):
            openSoftDevice(self.reactor, route=route).close()
        openSoftDevice(self.reactor, pcap=self.mktemp()).close()
        self.assertRaises(DeviceUnavailable, openSoftDevice, self.reactor, "192.0.2.213", pcap=self.mktemp())
        self.assertTrue(added.isNothing())
        self.assertEqual((self.reactor.getReaders(), self.reactor.getWriters()), ([], []))
        self.assertEqual(self.reactor.getDelayedCalls(), [])

    def test_failedOpeningLeavesNoDescriptorOrReader(self) -> None:
        class Broken(Exception):
            """An unexpected error."""

        def fail(*args: object, **kwargs: object) -> None:
            raise Broken

        gc.collect()  # objects left by earlier tests must be closed here, not during the test
        added = Added()
        for module, name in ((opening, "SoftPort"), (opening, "SharedMemoryPort"), (device, "SoftDevice")):
            patcher = self.patch(module, name, fail)
            self.assertRaises(Broken, openSoftDevice, self.reactor, port=0)
            patcher.restore()
            self.assertEqual((added.isNothing(), self.reactor.getReaders()), (True, []), name)

    @skipUnless(sys.platform == "linux", "shared memory is Linux's")
    def test_deviceIsFoundInDirectoryByAddressAndLeavesNothing(self) -> None:
        folder = tempfile.mkdtemp(prefix="txr")
        self.addCleanup(shutil.rmtree, folder)
        device = self.parser.parseDevice(self.reactor, route="shared-memory", runtime=folder)
        self.addCleanup(device.close)
        assert isinstance(device, SoftDevice)
        self.assertNotEqual(device.address, "127.0.0.1")
        self.assertTrue(device.gids(1)[0].isLoopback)
        self.assertEqual(os.listdir(folder), [meetingName(device.address, device.port)])
        device.close()
        self.assertEqual(os.listdir(folder), [])

    @skipUnless(sys.platform == "linux", "shared memory is Linux's")
    def test_namesOfKilledProcessesDoNotAccumulateInDirectory(self) -> None:
        folder = tempfile.mkdtemp(prefix="txr")
        self.addCleanup(shutil.rmtree, folder)
        living = self.open(route="shared-memory", runtime=folder)
        for number in range(50):
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as ended:
                ended.bind(f"{folder}/{meetingName('127.1.1.1', 1 + number)}")
            self.open(route="shared-memory", runtime=folder).close()
        names = os.listdir(folder)
        self.assertIn(meetingName(living.address, living.port), names)
        self.assertLess(len(names), 6)

    @skipUnless(sys.platform == "linux", "shared memory is Linux's")
    def test_deviceTakesOtherPortIfItsNameInDirectoryIsInUse(self) -> None:
        """A process of another network namespace may have the same address and port."""
        folder = tempfile.mkdtemp(prefix="txr")
        self.addCleanup(shutil.rmtree, folder)
        self.patch(opening, "randbelow", lambda below: 4)
        address, number = loopbackAddress(), portOfShare(5)
        with SocketDirectory(folder).publish(socket.SOCK_SEQPACKET, meetingName(address, number), 5):
            for route in ("auto", "shared-memory"):
                device = openSoftDevice(self.reactor, address, route=route, runtime=folder)
                self.addCleanup(device.close)
                self.assertEqual(len(device.routes), 2)
                self.assertNotEqual(device.port, number)

    def test_lackOfSharedMemoryIsLoggedOnce(self) -> None:
        """A program that connects again and again opens a device each time."""
        events: list[LogEvent] = []
        log = Logger(observer=cast(ILogObserver, events.append))
        self.patch(opening, "_rateLimited", RateLimitedLogger(log))
        self.patch(opening, "_whyNoSharedMemory", lambda: "forbidden")
        for _ in range(3):
            self.open(port="0").close()
        self.assertEqual([str(event["error"]) for event in events], ["forbidden"])

    @skipUnless(sys.platform == "linux", "abstract UNIX sockets are Linux's")
    def test_deviceTakesOtherPortIfItsNameIsInUse(self) -> None:
        self.patch(opening, "randbelow", lambda below: 4)
        address, number = loopbackAddress(), portOfShare(5)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as squatter:
            squatter.bind(rendezvousName(address, number))
            for route in ("auto", "shared-memory"):
                device = openSoftDevice(self.reactor, address, route=route)
                self.addCleanup(device.close)
                self.assertEqual(len(device.routes), 2)
                self.assertNotEqual(device.port, number)
            self.assertRaises(
                DeviceUnavailable,
                openSoftDevice,
                self.reactor,
                address,
                port=number,
                route="shared-memory",
            )
