"""
Ports of the software device: what they tell of themselves, and what commands and the host make of them.
"""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from unittest import SkipTest

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from txrdma.error import DeviceUnavailable, InvalidRequest
from txrdma.iba.types import DEFAULT_PKEY, GID, MTU
from txrdma.iba.verbs import (
    AddressVector,
    AsyncEventKind,
    GIDEntry,
    GIDType,
    LinkLayer,
    PhysicalState,
    PortState,
    QPAttributes,
)
from txrdma.interfaces import AsyncEvent
from txrdma.ports.netlink import InterfaceAddress, NetworkInterface
from txrdma.ports.network import HostNetwork
from txrdma.soft._netdev import softMAC
from txrdma.soft._route import Owner, Route
from txrdma.soft.device import SoftDevice
from txrdma.soft.hostinterfaces import HostInterfaces
from txrdma.soft.ports import NO_GID, SoftPort

ACTIVE, ERROR, GIDS = AsyncEventKind.PORT_ACTIVE, AsyncEventKind.PORT_ERROR, AsyncEventKind.GID_CHANGE

ETHERNET = NetworkInterface(
    2, "eth0", 9000, True, True, False, bytes(6), (InterfaceAddress("192.0.2.1", 24),)
)


class Host:
    """The interfaces of a host that a test changes."""

    def __init__(self) -> None:
        self.interface: NetworkInterface | None = ETHERNET
        self.isSilent = False

    def interfaceOf(self, address: str) -> NetworkInterface | None:
        if self.isSilent:
            raise DeviceUnavailable("no answer")
        return self.interface if address == "192.0.2.1" else None

    def rate(self, name: str) -> int:
        return {"eth0": 25_000_000_000}[name]


class Beginning:
    """Where routes begin: keeps what it is told."""

    resting = None

    def __init__(self) -> None:
        self.told: list[object] = []

    def connect(self, owner: Owner) -> Route | None:
        return None

    def drive(self) -> bool:
        """Nothing comes here."""
        return False

    def setEnabled(self, isEnabled: bool) -> None:
        self.told.append(isEnabled)

    def close(self) -> None:
        self.told.append("closed")


class PortTests(SynchronousTestCase):
    """A port is what its interface is, unless it was taken down."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.host = Host()
        self.route = Beginning()
        other = SoftPort("127.0.0.1", 4791, [])
        self.port = SoftPort("192.0.2.1", 4791, [self.route], None, self.host)
        self.device = SoftDevice(self.clock, [other, self.port])
        self.addCleanup(self.device.close)
        self.events: list[AsyncEvent] = []
        self.device.subscribe(self.events.append)

    def told(self) -> list[AsyncEventKind]:
        """Events since the last time: all of this port."""
        self.clock.advance(0)
        events, self.events[:] = self.events[:], []
        self.assertEqual({event.port for event in events} - {2}, set())
        return [event.kind for event in events]

    def change(self, **changes: object) -> None:
        """Another state of the interface, of which we hear."""
        self.host.interface = replace(ETHERNET, **changes)  # type: ignore[arg-type]  # whatever they are
        self.device.look()

    def test_attributes(self) -> None:
        """State, link layer, MTU, name and rate are those of the interface."""
        port = self.device.portAttributes(2)
        self.assertEqual((port.state, port.physicalState), (PortState.ACTIVE, PhysicalState.LINK_UP))
        self.assertEqual((port.linkLayer, port.netdev, port.lid), (LinkLayer.ETHERNET, "eth0", 0))
        self.assertEqual((port.activeMTU, port.maxMTU), (MTU.MTU_4096, MTU.MTU_4096))
        self.assertEqual((port.rate, port.width), (25_000_000_000, 1))
        self.assertEqual((port.mac, port.maxMessageLength), (softMAC("192.0.2.1", 4791), 1 << 31))

    def test_tables(self) -> None:
        """Each port has its own GID, and the default partition."""
        gid = GID.fromIP("192.0.2.1")
        self.assertEqual(self.device.gids(2), (gid,))
        self.assertEqual(self.device.gidTable(2), (GIDEntry(gid, GIDType.ROCE_V2, "eth0"),))
        self.assertEqual(self.device.gids(1), (GID.fromIP("127.0.0.1"),))
        self.assertEqual(self.device.pkeys(2), (DEFAULT_PKEY,))
        for ask in (
            self.device.gids,
            self.device.gidTable,
            self.device.pkeys,
            self.device.portAttributes,
        ):
            for number in (0, 3, -1):
                self.assertRaises(InvalidRequest, ask, number)

    def test_command(self) -> None:
        """Taken down by command, a port is disabled, its routes know, and both are told once."""
        self.device.setPortEnabled(2, False)
        self.device.setPortEnabled(2, False)
        port = self.device.portAttributes(2)
        self.assertEqual((port.state, port.physicalState), (PortState.DOWN, PhysicalState.DISABLED))
        self.assertEqual(self.device.portAttributes(1).state, PortState.ACTIVE)
        self.assertEqual((self.route.told, self.told()), ([False], [ERROR]))
        self.device.setPortEnabled(2, True)
        self.assertEqual(self.device.portAttributes(2).state, PortState.ACTIVE)
        self.assertEqual((self.route.told, self.told()), ([False, True], [ACTIVE]))
        self.assertRaises(InvalidRequest, self.device.setPortEnabled, 3, True)
        self.device.close()
        self.assertRaises(DeviceUnavailable, self.device.setPortEnabled, 2, False)

    def test_noCarrier(self) -> None:
        """An interface that lost its link polls for it; its GID stays."""
        self.change(hasCarrier=False)
        port = self.device.portAttributes(2)
        self.assertEqual((port.state, port.physicalState), (PortState.DOWN, PhysicalState.POLLING))
        self.assertEqual((self.told(), self.device.gids(2)[0].ip), ([ERROR], "192.0.2.1"))
        self.change()
        self.assertEqual(self.told(), [ACTIVE])

    def test_interfaceDown(self) -> None:
        """An interface that was taken down is disabled."""
        self.change(isUp=False, hasCarrier=False)
        port = self.device.portAttributes(2)
        self.assertEqual((port.state, port.physicalState), (PortState.DOWN, PhysicalState.DISABLED))
        self.assertEqual(self.told(), [ERROR])

    def test_addressGone(self) -> None:
        """Without its address a port has no GID and is down; with it, everything is as before."""
        self.host.interface = None
        self.device.look()
        self.assertEqual(self.told(), [ERROR, GIDS])
        self.assertEqual(self.device.gidTable(2), (GIDEntry(NO_GID, GIDType.ROCE_V2, ""),))
        port = self.device.portAttributes(2)
        self.assertEqual((port.state, port.netdev, port.rate), (PortState.DOWN, "", 0))
        way = AddressVector(GID.fromIP("192.0.2.2"), port=2)
        self.assertRaises(InvalidRequest, self.device.admit, QPAttributes(address=way), QPAttributes())
        self.host.interface = ETHERNET
        self.device.look()
        self.assertEqual(self.told(), [GIDS, ACTIVE])
        self.assertEqual(self.device.gids(2)[0].ip, "192.0.2.1")
        self.device.admit(QPAttributes(address=way), QPAttributes())

    def test_atOnce(self) -> None:
        """Who asks sees a change before anybody was told, and then it is told once."""
        self.host.interface = None
        self.assertEqual(self.device.gids(2), (NO_GID,))
        self.device.look()
        self.assertEqual(self.told(), [ERROR, GIDS])

    def test_downTwice(self) -> None:
        """A port that is down already by command has no second event when its link goes, too."""
        self.device.setPortEnabled(2, False)
        self.change(hasCarrier=False)
        self.assertEqual(self.told(), [ERROR])
        self.device.setPortEnabled(2, True)
        self.assertEqual(self.told(), [])
        self.change()
        self.assertEqual(self.told(), [ACTIVE])

    def test_otherMTU(self) -> None:
        """A change of the MTU is seen, and is no event."""
        self.change(mtu=1500)
        self.assertEqual((self.device.portAttributes(2).activeMTU, self.told()), (MTU.MTU_1024, []))
        wrong = QPAttributes(pathMTU=MTU.MTU_2048)
        self.assertRaises(InvalidRequest, self.device.admit, wrong, QPAttributes(port=2))

    def test_noAnswer(self) -> None:
        """While the system does not answer, a port stays what it was."""
        self.host.isSilent = True
        self.assertEqual((self.device.portAttributes(2).state, self.told()), (PortState.ACTIVE, []))

    def test_ofNoHost(self) -> None:
        """A port of no host, such as a simulated one, is up for ever, and nothing is ever told of it."""
        self.device.look()
        port = self.device.portAttributes(1)
        self.assertEqual((port.state, port.netdev, port.rate), (PortState.ACTIVE, "", 0))
        self.assertEqual(port.activeMTU, MTU.MTU_1024)
        self.assertEqual(self.told(), [])

    def test_closed(self) -> None:
        """The ports of a closed device are down, and the host is asked no more."""
        self.device.close()
        self.host.interface = None
        self.assertEqual(self.device.portAttributes(2).state, PortState.DOWN)
        self.assertEqual((self.route.told, self.device.gids(2)[0].ip), (["closed"], "192.0.2.1"))

    def test_samePort(self) -> None:
        """The way of a queue pair begins at the queue pair's port."""
        other = AddressVector(GID.fromIP("192.0.2.2"), port=1)
        own = replace(other, port=2)
        onSecond = QPAttributes(port=2)
        self.device.admit(QPAttributes(address=own), onSecond)
        self.assertRaises(InvalidRequest, self.device.admit, QPAttributes(address=other), onSecond)
        connected = QPAttributes(port=2, address=own)
        self.assertRaises(InvalidRequest, self.device.admit, QPAttributes(port=1), connected)
        self.device.admit(QPAttributes(port=1, address=other), connected)

    def test_alternateElsewhere(self) -> None:
        """An alternate path may begin at another port, if there is one."""
        current = QPAttributes(port=2, address=AddressVector(GID.fromIP("192.0.2.2"), port=2))
        for number in (1, 2):
            way = AddressVector(GID.fromIP("192.0.2.3"), port=number)
            self.device.admit(QPAttributes(alternateAddress=way), current)
        nowhere = AddressVector(GID.fromIP("192.0.2.3"), port=3)
        self.assertRaises(InvalidRequest, self.device.admit, QPAttributes(alternateAddress=nowhere), current)
        narrow = QPAttributes(alternateAddress=replace(way, port=1))
        large = replace(current, pathMTU=MTU.MTU_4096)
        self.device.admit(QPAttributes(alternateAddress=way), large)
        self.assertRaises(InvalidRequest, self.device.admit, narrow, large)
        wrong = QPAttributes(alternateAddress=way, alternatePKeyIndex=1)
        self.assertRaises(InvalidRequest, self.device.admit, wrong, current)


FOLLOWING = """
import subprocess
from twisted.internet import defer, reactor, task
from txrdma.soft.device import openSoftDevice

def ip(command):
    subprocess.run(["ip", *command.split()], check=True)

def state():
    port = device.portAttributes(1)
    return port.state.name, port.netdev, port.rate, str(device.gids(1)[0])

ip("link set lo up")
ip("link add v0 type veth peer name v1")
ip("addr add 10.98.0.1/24 dev v0")
ip("addr add 10.99.0.3/24 dev v0")
ip("link set v0 up")
ip("link set v1 up")
device = openSoftDevice(reactor, ["10.99.0.3", "127.0.0.1"], route="rocev2")
device.subscribe(lambda event: heard.append((event.kind.name, event.port)))
heard = []

async def follow():
    print(*state())
    for command in (
        "link set v1 down",
        "link set v1 up",
        "link set v0 down",
        "link set v0 up",
        "addr del 10.99.0.3/24 dev v0",
        "addr add 10.99.0.3/24 dev v0",
        "addr del 10.98.0.1/24 dev v0",
    ):
        ip(command)
        for _ in range(300):
            await task.deferLater(reactor, 0.01)
            if heard:
                break
            if "10.98.0.1/" in command and _ > 20:
                break
        await task.deferLater(reactor, 0.01)
        print(command, *state(), *heard)
        heard.clear()
    device.close()

defer.ensureDeferred(follow()).addBoth(lambda result: (result and print(result), reactor.stop()))
reactor.run()
"""

FOLLOWED = """\
ACTIVE v0 10000000000 ::ffff:10.99.0.3
link set v1 down DOWN v0 10000000000 ::ffff:10.99.0.3 ('PORT_ERROR', 1)
link set v1 up ACTIVE v0 10000000000 ::ffff:10.99.0.3 ('PORT_ACTIVE', 1)
link set v0 down DOWN v0 10000000000 ::ffff:10.99.0.3 ('PORT_ERROR', 1)
link set v0 up ACTIVE v0 10000000000 ::ffff:10.99.0.3 ('PORT_ACTIVE', 1)
addr del 10.99.0.3/24 dev v0 DOWN  0 :: ('PORT_ERROR', 1) ('GID_CHANGE', 1)
addr add 10.99.0.3/24 dev v0 ACTIVE v0 10000000000 ::ffff:10.99.0.3 ('GID_CHANGE', 1) ('PORT_ACTIVE', 1)
addr del 10.98.0.1/24 dev v0 ACTIVE v0 10000000000 ::ffff:10.99.0.3
"""


LOSING = """
import subprocess
from twisted.internet import defer, reactor, task
from txrdma.iba.verbs import Operation
from txrdma.soft.device import openSoftDevice
from txrdma.test.soft.pairs import connected

def ip(command):
    subprocess.run(["ip", *command.split()], check=True)

ip("link set lo up")
ip("link add v0 type veth peer name v1")
ip("link set v0 up")
ip("link set v1 up")
ip("addr add 10.98.0.1/24 dev v0")
ip("addr add 10.99.0.1/24 dev v1")
devices = [openSoftDevice(reactor, address, route="rocev2") for address in ("10.98.0.1", "10.99.0.1")]
carriers = [device.routes[0]._carrier for device in devices]
alice, bob = connected(*devices, timeout=16)
length = 1 << 20
alice.region.view[:] = bytes(range(256)) * (length // 256)

async def until(condition):
    for _ in range(2000):
        if condition():
            return
        await task.deferLater(reactor, 0.01)
    print("too long")

async def lose():
    batches = [carrier.segments > 1 for carrier in carriers]
    for remove, add in (
        ("addr del 10.98.0.1/24 dev v0", "addr add 10.98.0.1/24 dev v0"),
        ("addr del 10.99.0.1/24 dev v1", "addr add 10.99.0.1/24 dev v1"),
    ):
        bob.region.view[:] = bytes(length)
        before = sum(carrier.dropped for carrier in carriers)
        for part in range(16):
            alice.write(bob, part, part << 16, 1 << 16, part << 16)
        ip(remove)
        await until(lambda: sum(carrier.dropped for carrier in carriers) > before)
        ip(add)
        done = []
        await until(lambda: done.extend(alice.poll()) or len(done) == 16)
        print({completion.status.name for completion in done}, alice.region.view == bob.region.view)
    print(batches == [carrier.segments > 1 for carrier in carriers])
    for device in devices:
        device.close()

defer.ensureDeferred(lose()).addBoth(lambda result: (result and print(result), reactor.stop()))
reactor.run()
"""


class HostTests(SynchronousTestCase):
    """The interfaces of this host, and, in a network namespace of its own, what becomes of them."""

    if sys.platform != "linux":
        skip = "netlink is of Linux"

    def test_loopback(self) -> None:
        """The loopback interface is found, by all its addresses."""
        here = HostInterfaces()
        self.addCleanup(here.close)
        self.assertIs(here.known, here)
        for address in ("127.0.0.1", "127.8.9.10"):
            found = here.interfaceOf(address)
            assert found is not None
            self.assertEqual((found.name, found.isRunning, here.rate(found.name)), ("lo", True, 0))
        self.assertIsNone(here.interfaceOf("192.0.2.213"))

    def test_elsewhere(self) -> None:
        """Where the system does not tell, nothing is known."""
        self.patch(sys, "platform", "plan9")
        here = HostInterfaces()
        self.addCleanup(here.close)
        self.assertIsNone(here.known)
        self.assertEqual(here.rate("eth0"), 0)
        self.assertRaises(DeviceUnavailable, here.interfaceOf, "127.0.0.1")

    def test_forbidden(self) -> None:
        """Where the system does not answer, nothing is known, and nothing stays open."""

        def refuse(network: HostNetwork) -> None:
            raise DeviceUnavailable("no answer")

        self.patch(HostNetwork, "interfaces", refuse)
        gc.collect()  # what tests before this one left open closes here, not meanwhile
        before = len(os.listdir("/dev/fd"))
        self.assertIsNone(HostInterfaces().known)
        self.assertEqual(len(os.listdir("/dev/fd")), before)

    def test_ofNoInterface(self) -> None:
        """An address that is ours by a route, though no interface has it, makes a port that is up."""
        program = """
import subprocess
from twisted.internet.testing import MemoryReactorClock
from txrdma.soft.device import openSoftDevice

for command in ("link set lo up", "route add local 192.0.2.0/24 dev lo"):
    subprocess.run(["ip", *command.split()], check=True)
device = openSoftDevice(MemoryReactorClock(), "192.0.2.7")
device.look()
port = device.portAttributes(1)
print(port.state.name, port.netdev, device.gids(1)[0])
device.close()
"""
        self.assertEqual(self.alone(program), "ACTIVE  ::ffff:192.0.2.7\n")

    def test_otherNamespace(self) -> None:
        """A device sees the interfaces of the namespace that it was opened in, wherever its thread goes."""
        program = """
import ctypes, subprocess
from twisted.internet.testing import MemoryReactorClock
from txrdma.soft.device import openSoftDevice

def ip(command):
    subprocess.run(["ip", *command.split()], check=True)

def state():
    port = device.portAttributes(1)
    print(port.state.name, port.netdev, port.activeMTU.bytes, port.rate)

ip("link add v0 mtu 9000 type veth peer name v1")
ip("addr add 10.99.0.1/24 dev v0")
ip("link set v0 up")
ip("link set v1 up")
device = openSoftDevice(MemoryReactorClock(), "10.99.0.1", route="rocev2")
state()
assert ctypes.CDLL(None).unshare(0x40000000) == 0  # CLONE_NEWNET
ip("link add v0 mtu 1500 type veth peer name v1")
state()
device.close()
"""
        self.assertEqual(self.alone(program), "ACTIVE v0 4096 10000000000\n" * 2)

    def test_followed(self) -> None:
        """Links and addresses that go and come are told, and are true; second addresses are found, too."""
        self.assertEqual(self.alone(FOLLOWING), FOLLOWED)

    def test_comesBack(self) -> None:
        """A connection outlives that either end's address is gone for a while: what can't be sent is lost."""
        self.assertEqual(self.alone(LOSING), "{'SUCCESS'} True\n" * 2 + "True\n")

    def alone(self, program: str) -> str:
        """What a program says in a network namespace of its own."""
        if not shutil.which("ip"):
            raise SkipTest("there is no ip command")
        alone = ["unshare", "--user", "--map-root-user", "--net"]
        try:
            subprocess.run([*alone, "ip", "link", "add", "type", "veth"], check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise SkipTest(f"no network namespace with links of one's own can be had: {error}") from None
        done = subprocess.run(
            [*alone, sys.executable, "-c", program], capture_output=True, text=True, timeout=120
        )
        self.assertEqual(done.stderr, "")
        return done.stdout
