"""
Two network namespaces in the guest, joined by a wire: rxe in the first one, a software device in the second.

rxe has its UDP port in the first namespace only. A socket belongs to the namespace in which it was made, so
one process can use both: the software device is opened while the thread is in the second one.
"""

from __future__ import annotations

import atexit
import ctypes
import json
import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Final

from twisted.internet.defer import Deferred
from twisted.internet.epollreactor import EPollReactor
from twisted.python.failure import Failure

from txrdma.iba.types import GID
from txrdma.interfaces import IVerbsDevice
from txrdma.soft.device import openSoftDevice, SoftDevice
from txrdma.test.system.kernel import OUTSIDE
from txrdma.testing.reactors import RealTime
from txrdma.verbs.devices import openDevice

_CLONE_NEWNET: Final = 0x40000000

HERE, THERE = "10.79.0.1", "10.79.0.2"
HERE6, THERE6 = "fd79::1", "fd79::2"
LINK = "txrdma0"
"""The interface at each end of the wire."""

HERE_LOCAL, THERE_LOCAL = f"fe80::79:1%{LINK}", f"fe80::79:2%{LINK}"
NAMESPACE, RXE = "txrdma-far", "txrdma_rxe"

MTU_1024, MTU_4096 = 1500, 4400
"""MTUs of the wire for these path MTUs."""

PACE = 20
"""Factor for timeouts, because emulated code is slow."""


def run(*words: str) -> str:
    """Return a program's output; a failure ends the test."""
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise OSError(f"{' '.join(words)}: {done.stdout}")
    return done.stdout


@dataclass(frozen=True)
class Trouble:
    """Counters of netem for the packets sent at one end of the wire."""

    packets: int
    dropped: int


class World:
    """The two namespaces, the wire between them, and rxe at the local end."""

    def __init__(self, mtu: int = MTU_4096) -> None:
        self.mtu = mtu

    def begin(self) -> None:
        """Create them; delete those of an earlier world first."""
        self.end()
        run("ip", "netns", "add", NAMESPACE)
        mtu = str(self.mtu)
        ends = ("mtu", mtu, "type", "veth", "peer", "name", LINK, "netns", NAMESPACE, "mtu", mtu)
        run("ip", "link", "add", LINK, *ends)
        run("ip", "addr", "add", f"{HERE}/24", "dev", LINK)
        run("ip", "link", "set", LINK, "up")
        run("ip", "-n", NAMESPACE, "addr", "add", f"{THERE}/24", "dev", LINK)
        run("ip", "-n", NAMESPACE, "link", "set", LINK, "up")
        run("ip", "-n", NAMESPACE, "link", "set", "lo", "up")
        self.addRXE()

    def addRXE(self) -> None:
        """Create rxe at the local end."""
        run("rdma", "link", "add", RXE, "type", "rxe", "netdev", LINK)
        self._awaitGID(HERE)

    def addIPv6(self) -> None:
        """Give both ends a global and a link-local IPv6 address, too. Idempotent."""
        if self._hasGID(HERE6):
            return
        for here, there in ((HERE_LOCAL, THERE_LOCAL), (HERE6, THERE6)):
            for namespace, address in (((), here), (("-n", NAMESPACE), there)):
                prefix = f"{address.partition('%')[0]}/64"
                run("ip", *namespace, "addr", "add", prefix, "dev", LINK, "nodad")
            self._awaitGID(here)

    def _awaitGID(self, address: str) -> None:
        deadline = time.monotonic() + 30
        while not self._hasGID(address):  # the kernel creates GIDs asynchronously
            if time.monotonic() > deadline:
                raise OSError(f"{RXE} has no GID for {address}")
            time.sleep(0.05)

    @staticmethod
    def _hasGID(address: str) -> bool:
        wanted = str(GID.fromIP(address))
        for index in range(8):
            try:
                with open(f"/sys/class/infiniband/{RXE}/ports/1/gids/{index}") as file:
                    if str(GID.fromIP(file.read().strip())) == wanted:
                        return True
            except OSError:
                return False
        return False

    def removeRXE(self) -> None:
        """Delete the device, even if it is in use."""
        run("rdma", "link", "del", RXE)

    def end(self) -> None:
        if os.path.exists(f"/sys/class/infiniband/{RXE}"):
            self.removeRXE()
        if os.path.exists(f"/sys/class/net/{LINK}"):
            run("ip", "link", "del", LINK)
        if os.path.exists(f"/run/netns/{NAMESPACE}"):
            run("ip", "netns", "del", NAMESPACE)

    @contextmanager
    def far(self) -> Iterator[None]:
        """Run the block in the second namespace; sockets made in it remain there."""
        libc = ctypes.CDLL(None, use_errno=True)
        with open("/proc/thread-self/ns/net") as here, open(f"/run/netns/{NAMESPACE}") as there:
            for fd in (there, here):
                if libc.setns(fd.fileno(), _CLONE_NEWNET):
                    raise OSError(ctypes.get_errno(), "setns")
                if fd is there:
                    try:
                        yield
                    except BaseException:
                        libc.setns(here.fileno(), _CLONE_NEWNET)
                        raise

    def openSoft(self, reactor: object, address: str = THERE) -> SoftDevice:
        """Open a software device in the second namespace."""
        with self.far():
            return openSoftDevice(reactor, address, route="rocev2")

    def openRXE(self, reactor: object) -> IVerbsDevice:
        """Open the kernel's device by pyverbs."""
        return openDevice(reactor, f"pyverbs:{RXE}")

    def setLink(self, isFar: bool, isUp: bool) -> None:
        """Set one end of the wire down or up."""
        namespace, device = self._place(isFar)
        run("ip", *namespace, "link", "set", device, "up" if isUp else "down")

    def settle(self) -> None:
        """Wait until the wire has a link and rxe's port is active."""
        deadline = time.monotonic() + 30
        while not (self._contains(f"/sys/class/net/{LINK}/operstate", "up") and self._isActive()):
            if time.monotonic() > deadline:
                raise OSError(f"{RXE} does not become active")
            time.sleep(0.05)

    def _isActive(self) -> bool:
        return self._contains(f"/sys/class/infiniband/{RXE}/ports/1/state", "ACTIVE")

    @staticmethod
    def _contains(path: str, word: str) -> bool:
        with open(path) as file:
            return word in file.read()

    # faults of packets

    def spoil(self, isFar: bool, *how: str) -> None:
        """Have netem affect packets sent at that end; the words are those of tc."""
        namespace, device = self._place(isFar)
        run("tc", *namespace, "qdisc", "replace", "dev", device, "root", "netem", "limit", "100000", *how)

    def mend(self) -> None:
        """Remove netem's faults."""
        for isFar in (False, True):
            namespace, device = self._place(isFar)
            if "netem" in run("tc", *namespace, "qdisc", "show", "dev", device):
                run("tc", *namespace, "qdisc", "del", "dev", device, "root")

    def trouble(self, isFar: bool) -> Trouble:
        """Return netem's counters of that end."""
        namespace, device = self._place(isFar)
        shown = json.loads(run("tc", *namespace, "-s", "-j", "qdisc", "show", "dev", device))
        (netem,) = (each for each in shown if each["kind"] == "netem")
        return Trouble(netem["packets"], netem["drops"])

    def rxeCounter(self, name: str) -> int:
        """Return one of rxe's port counters."""
        with open(f"/sys/class/infiniband/{RXE}/ports/1/hw_counters/{name}") as file:
            return int(file.read())

    def wrongChecksums(self, isFar: bool) -> int:
        """Return how many wrong UDP or IP checksums Linux has found at that end."""
        with self.far() if isFar else nullcontext(), open("/proc/thread-self/net/snmp") as file:
            lines = [line.split() for line in file]
        known = {(names[0], name): int(value) for names, values in zip(lines[::2], lines[1::2], strict=True)
                 for name, value in zip(names[1:], values[1:], strict=True)}  # fmt: skip
        return known["Udp:", "InCsumErrors"] + known["Ip:", "InHdrErrors"]

    @staticmethod
    def _place(isFar: bool) -> tuple[Sequence[str], str]:
        return (("-n", NAMESPACE) if isFar else ()), LINK


_present: World | None = None


def _endOfAll() -> None:
    if _present is not None:
        _present.end()


def leaveToNext() -> None:
    """
    Let the next process that needs a world delete this one.

    librdmacm has devices open until its process ends, and rxe cannot be deleted before.
    """
    atexit.unregister(_endOfAll)


def worldOf(mtu: int) -> World:
    """Return the world with such a wire. It ends with the process or when another is needed."""
    global _present
    if _present is None:
        atexit.register(_endOfAll)
    if _present is None or _present.mtu != mtu:
        if _present is not None:
            _present.end()
        _present = None
        world = World(mtu)
        world.begin()
        _present = world
    return _present


class InTheBox(RealTime):
    """
    Tests with a new reactor, in a world with the given wire.

    @cvar mtu: MTU of the wire.
    @cvar here: address of rxe's end; C{there}: that of the software device.
    """

    skip = OUTSIDE
    mtu = MTU_4096
    here, there = HERE, THERE
    slowness = PACE
    world: World

    def setUp(self) -> None:
        self.world = self.makeWorld()
        if ":" in self.here:
            self.world.addIPv6()
        super().setUp()

    def makeWorld(self) -> World:
        return worldOf(self.mtu)

    def makeReactor(self) -> Any:
        """Return a reactor that runs on demand, and is disconnected after the test."""
        reactor = EPollReactor()
        self.addCleanup(self._endReactor, reactor)
        return reactor

    def result(self, deferred: Deferred[Any], seconds: float = 4.0) -> Any:
        """Run the reactor until a Deferred has a result; return it, or raise its failure."""
        results: list[Any] = []
        deferred.addBoth(results.append)
        self.runUntil(lambda: bool(results), seconds)
        if isinstance(results[0], Failure):
            results[0].raiseException()
        return results[0]

    @staticmethod
    def _endReactor(reactor: Any) -> None:
        reactor._uninstallHandler()
        reactor.removeAll()
        for reader in reactor._internalReaders:
            reader.connectionLost(None)
        reactor._internalReaders.clear()
        reactor._poller.close()
        for pool in (reactor.threadpool,):
            if pool is not None:
                pool.stop()
