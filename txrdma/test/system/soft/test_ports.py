"""
Ports of the software device: their attributes, and their changes by commands and by the host.
"""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys
from unittest import SkipTest

from twisted.trial.unittest import SynchronousTestCase

from txrdma.error import DeviceUnavailable
from txrdma.ports.network import HostNetwork
from txrdma.soft import hostinterfaces
from txrdma.soft.hostinterfaces import HostInterfaces, openHostInterfaces

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
device.subscribe(lambda event: received.append((event.kind.name, event.port)))
received = []

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
            if received:
                break
            if "10.98.0.1/" in command and _ > 20:
                break
        await task.deferLater(reactor, 0.01)
        print(command, *state(), *received)
        received.clear()
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
from txrdma.test.support.soft.pairs import connected

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
    """The interfaces of this host, and changes in a new network namespace."""

    slowBecause = "starts processes in a new network namespace"

    if sys.platform != "linux":
        skip = "netlink is available on Linux only"

    def test_loopbackIsFoundByAllItsAddresses(self) -> None:
        here = HostInterfaces()
        self.addCleanup(here.close)
        for address in ("127.0.0.1", "127.8.9.10"):
            found = here.interfaceOf(address)
            assert found is not None
            self.assertEqual((found.name, found.isRunning, here.rate(found.name)), ("lo", True, 0))
        self.assertIsNone(here.interfaceOf("192.0.2.213"))

    def test_recentQueriesShareQueryOfKernel(self) -> None:
        here = HostInterfaces()
        self.addCleanup(here.close)
        asked: list[str] = []

        def answer(network: HostNetwork, address: str) -> None:
            asked.append(address)

        self.patch(HostNetwork, "interfaceOf", answer)
        seconds = iter((1.0, 1.005, 1.006, 1.02, 1.021))
        self.patch(hostinterfaces, "monotonic", lambda: next(seconds))
        for address in ("127.0.0.1", "127.0.0.1", "127.0.0.2", "127.0.0.1", "127.0.0.1"):
            self.assertIsNone(here.interfaceOf(address))
        self.assertEqual(asked, ["127.0.0.1", "127.0.0.2", "127.0.0.1"])

    def test_interfacesAreUnknownWithoutNetlink(self) -> None:
        self.patch(sys, "platform", "plan9")
        self.assertIsNone(openHostInterfaces())

    def test_refusedQueriesLeaveNothingOpen(self) -> None:
        def refuse(network: HostNetwork, address: str) -> None:
            raise DeviceUnavailable("no answer")

        self.patch(HostNetwork, "interfaceOf", refuse)
        gc.collect()  # objects left by earlier tests must be closed here, not during the test
        before = len(os.listdir("/dev/fd"))
        self.assertIsNone(openHostInterfaces())
        self.assertEqual(len(os.listdir("/dev/fd")), before)

    def test_portAtLocalRouteIsUp(self) -> None:
        program = """
import subprocess
from twisted.internet.testing import MemoryReactorClock
from txrdma.soft.device import openSoftDevice

for command in ("link set lo up", "route add local 192.0.2.0/24 dev lo"):
    subprocess.run(["ip", *command.split()], check=True)
device = openSoftDevice(MemoryReactorClock(), "192.0.2.7")
device.readInterfaces()
port = device.portAttributes(1)
print(port.state.name, port.netdev, device.gids(1)[0])
device.close()
"""
        self.assertEqual(self.alone(program), "ACTIVE  ::ffff:192.0.2.7\n")

    def test_deviceUsesInterfacesOfItsNamespace(self) -> None:
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
        """Links and addresses that are added or removed are reported, including secondary addresses."""
        self.assertEqual(self.alone(FOLLOWING), FOLLOWED)

    def test_connectionSurvivesTemporaryLossOfAddress(self) -> None:
        self.assertEqual(self.alone(LOSING), "{'SUCCESS'} True\n" * 2 + "True\n")

    def alone(self, program: str) -> str:
        """Return the output of a program in a new network namespace."""
        if not shutil.which("ip"):
            raise SkipTest("there is no ip command")
        alone = ["unshare", "--user", "--map-root-user", "--net"]
        try:
            subprocess.run([*alone, "ip", "link", "add", "type", "veth"], check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise SkipTest(f"no separate network namespace is available: {error}") from None
        done = subprocess.run(
            [*alone, sys.executable, "-c", program], capture_output=True, text=True, timeout=120
        )
        self.assertEqual(done.stderr, "")
        return done.stdout
