"""Network interfaces of this host, read over netlink."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys

from twisted.trial.unittest import SkipTest, SynchronousTestCase

from txrdma.ports.network import HostNetwork

FOLLOWING = """
import subprocess, sys
from twisted.internet import reactor
from txrdma.ports.network import HostNetwork

network = HostNetwork.open()
assert network.interfaceOf("10.99.0.1") is None
steps = iter([
    ("ip link set lo up", lambda: network.interface("lo").isRunning),
    ("ip addr add 10.99.0.1/32 dev lo", lambda: network.interfaceOf("10.99.0.1")),
    ("ip addr add fd00::1/128 dev lo", lambda: network.interfaceOf("fd00::1")),
    ("ip link set lo mtu 1500", lambda: network.interface("lo").mtu == 1500),
    ("ip addr del 10.99.0.1/32 dev lo", lambda: not network.interfaceOf("10.99.0.1")),
    ("ip link set lo down", lambda: not network.interface("lo").isRunning),
])
holds = lambda: True

def changed():
    global holds
    if not holds():
        return
    command, holds = next(steps, (None, None))
    if command is None:
        print("all changed")
        network.close()
        reactor.stop()
    else:
        subprocess.run(command.split(), check=True)

network.watch(reactor, changed)
reactor.callWhenRunning(changed)
reactor.callLater(100, reactor.stop)
reactor.run()
"""


class HostTests(SynchronousTestCase):
    """The kernel of this host, over real sockets."""

    if sys.platform != "linux":
        skip = "netlink is available on Linux only"

    def test_loopback(self) -> None:
        """Every host has the loopback interface with its address."""
        here = HostNetwork.open()
        self.addCleanup(here.close)
        found = here.interfaceOf("127.0.0.1")
        assert found is not None
        self.assertTrue(found.isLoopback)
        self.assertEqual(found.index, socket.if_nametoindex(found.name))
        self.assertEqual(
            {each.name for each in here.interfaces()}, {name for _index, name in socket.if_nameindex()}
        )

    def test_following(self) -> None:
        """In a network namespace every change of addresses and links is reported and then visible."""
        if not shutil.which("ip"):
            raise SkipTest("there is no ip command")
        alone = ["unshare", "--user", "--map-root-user", "--net"]
        try:
            subprocess.run([*alone, "true"], check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise SkipTest(f"no separate network namespace is available: {error}") from None
        done = subprocess.run(
            [*alone, sys.executable, "-c", FOLLOWING], capture_output=True, text=True, timeout=120
        )
        self.assertEqual((done.stderr, done.stdout), ("", "all changed\n"))

    def test_namespace(self) -> None:
        """A network reports the namespace in which it was opened, even if the thread enters another one."""
        program = (
            "import ctypes, os\n"
            "from txrdma.ports.network import HostNetwork\n"
            "here = HostNetwork.open()\n"
            "before = here.interfaces()\n"
            "if ctypes.CDLL(None, use_errno=True).unshare(0x10000000 | 0x40000000):\n"  # NEWUSER, NEWNET
            "    print('skip', os.strerror(ctypes.get_errno()))\n"
            "else:\n"
            "    there = HostNetwork.open()\n"
            "    print(here.interfaceOf('127.0.0.1').isUp, there.interface('lo').isUp)\n"
        )
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
        if done.stdout.startswith("skip"):
            raise SkipTest(f"no separate network namespace is available: {done.stdout[5:].strip()}")
        self.assertEqual((done.stderr, done.stdout), ("", "True False\n"))
