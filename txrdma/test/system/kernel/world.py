"""
A world of two network namespaces in the kernel's box: rxe here, a software device far away, a wire between.

rxe has its UDP port in the first namespace only. A socket stays in the namespace in which it was made, so one
process can have both: the far device is opened while the thread is over there.
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

from twisted.internet.epollreactor import EPollReactor

from txrdma.interfaces import IVerbsDevice
from txrdma.soft.device import openSoftDevice, SoftDevice
from txrdma.testing.reactors import RealTime
from txrdma.verbs.devices import openDevice

_CLONE_NEWNET: Final = 0x40000000

HERE, THERE = "10.79.0.1", "10.79.0.2"
LINK_HERE, LINK_THERE = "txrdma0", "txrdma1"
NAMESPACE, RXE = "txrdma-far", "txrdma_rxe"

MTU_1024, MTU_4096 = 1500, 4400
"""MTUs of the wire that give these path MTUs."""

PACE = 20
"""Emulated code is slow: how much more time waiting has here than elsewhere."""


def run(*words: str) -> str:
    """A program's output; its end is that of the test when it fails."""
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise OSError(f"{' '.join(words)}: {done.stdout}")
    return done.stdout


@dataclass(frozen=True)
class Trouble:
    """What netem has done to packets that left by one end of the wire, and how many there were."""

    packets: int
    dropped: int


class World:
    """The two namespaces, the wire between them, and rxe at its near end."""

    def __init__(self, mtu: int = MTU_4096) -> None:
        self.mtu = mtu

    def begin(self) -> None:
        """Make them; what is there of an earlier world goes first."""
        self.end()
        run("ip", "netns", "add", NAMESPACE)
        mtu = str(self.mtu)
        ends = ("mtu", mtu, "type", "veth", "peer", "name", LINK_THERE, "netns", NAMESPACE, "mtu", mtu)
        run("ip", "link", "add", LINK_HERE, *ends)
        run("ip", "addr", "add", f"{HERE}/24", "dev", LINK_HERE)
        run("ip", "link", "set", LINK_HERE, "up")
        run("ip", "-n", NAMESPACE, "addr", "add", f"{THERE}/24", "dev", LINK_THERE)
        run("ip", "-n", NAMESPACE, "link", "set", LINK_THERE, "up")
        run("ip", "-n", NAMESPACE, "link", "set", "lo", "up")
        self.addRXE()

    def addRXE(self) -> None:
        """Have rxe at the near end."""
        run("rdma", "link", "add", RXE, "type", "rxe", "netdev", LINK_HERE)
        deadline = time.monotonic() + 30
        while not self._hasGID():  # the kernel makes the GIDs in its own time
            if time.monotonic() > deadline:
                raise OSError(f"{RXE} has no GID for {HERE}")
            time.sleep(0.05)

    @staticmethod
    def _hasGID() -> bool:
        wanted = "ffff:0a4f:0001"
        for index in range(4):
            try:
                with open(f"/sys/class/infiniband/{RXE}/ports/1/gids/{index}") as file:
                    if file.read().strip().endswith(wanted):
                        return True
            except OSError:
                return False
        return False

    def removeRXE(self) -> None:
        """Delete the device, whoever uses it."""
        run("rdma", "link", "del", RXE)

    def end(self) -> None:
        """Leave nothing behind."""
        if os.path.exists(f"/sys/class/infiniband/{RXE}"):
            self.removeRXE()
        if os.path.exists(f"/sys/class/net/{LINK_HERE}"):
            run("ip", "link", "del", LINK_HERE)
        if os.path.exists(f"/run/netns/{NAMESPACE}"):
            run("ip", "netns", "del", NAMESPACE)

    @contextmanager
    def far(self) -> Iterator[None]:
        """This thread is far away; sockets that it makes stay there."""
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

    def openSoft(self, reactor: object, pcap: str | None = None) -> SoftDevice:
        """A software device, far away."""
        with self.far():
            return openSoftDevice(reactor, THERE, route="rocev2", pcap=pcap)

    def openRXE(self, reactor: object) -> IVerbsDevice:
        """The kernel's, by pyverbs."""
        return openDevice(reactor, f"pyverbs:{RXE}")

    def setLink(self, isFar: bool, isUp: bool) -> None:
        """One end of the wire goes down, or up again."""
        namespace, device = self._place(isFar)
        run("ip", *namespace, "link", "set", device, "up" if isUp else "down")

    def settle(self) -> None:
        """Wait until the wire has a link, and rxe has heard of it."""
        deadline = time.monotonic() + 30
        while not (self._contains(f"/sys/class/net/{LINK_HERE}/operstate", "up") and self._isActive()):
            if time.monotonic() > deadline:
                raise OSError(f"{RXE} does not become active")
            time.sleep(0.05)

    def _isActive(self) -> bool:
        return self._contains(f"/sys/class/infiniband/{RXE}/ports/1/state", "ACTIVE")

    @staticmethod
    def _contains(path: str, word: str) -> bool:
        with open(path) as file:
            return word in file.read()

    # What packets suffer.

    def spoil(self, isFar: bool, *how: str) -> None:
        """Have netem spoil what leaves by that end, in the words of tc."""
        namespace, device = self._place(isFar)
        run("tc", *namespace, "qdisc", "replace", "dev", device, "root", "netem", "limit", "100000", *how)

    def mend(self) -> None:
        """No more of it."""
        for isFar in (False, True):
            namespace, device = self._place(isFar)
            if "netem" in run("tc", *namespace, "qdisc", "show", "dev", device):
                run("tc", *namespace, "qdisc", "del", "dev", device, "root")

    def trouble(self, isFar: bool) -> Trouble:
        """What netem has done so far at that end."""
        namespace, device = self._place(isFar)
        shown = json.loads(run("tc", *namespace, "-s", "-j", "qdisc", "show", "dev", device))
        (netem,) = (each for each in shown if each["kind"] == "netem")
        return Trouble(netem["packets"], netem["drops"])

    def rxeCounter(self, name: str) -> int:
        """One of the counters that rxe keeps of its port."""
        with open(f"/sys/class/infiniband/{RXE}/ports/1/hw_counters/{name}") as file:
            return int(file.read())

    def wrongChecksums(self, isFar: bool) -> int:
        """How often Linux has found a wrong UDP or IP checksum at that end."""
        with self.far() if isFar else nullcontext(), open("/proc/thread-self/net/snmp") as file:
            lines = [line.split() for line in file]
        known = {(names[0], name): int(value) for names, values in zip(lines[::2], lines[1::2], strict=True)
                 for name, value in zip(names[1:], values[1:], strict=True)}  # fmt: skip
        return known["Udp:", "InCsumErrors"] + known["Ip:", "InHdrErrors"]

    @staticmethod
    def _place(isFar: bool) -> tuple[Sequence[str], str]:
        return (("-n", NAMESPACE), LINK_THERE) if isFar else ((), LINK_HERE)


_present: World | None = None


def _endOfAll() -> None:
    if _present is not None:
        _present.end()


def leaveToNext() -> None:
    """
    Have the world ended by the next process that needs one.

    librdmacm has devices open until its process ends, and rxe can't be deleted before.
    """
    atexit.unregister(_endOfAll)


def worldOf(mtu: int) -> World:
    """The world with such a wire; one at a time, which ends with the process or when another is needed."""
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
    Tests with a reactor of their own, in a world whose wire is as they say.

    @cvar mtu: of the wire.
    """

    mtu = MTU_4096
    slowness = PACE
    world: World

    def setUp(self) -> None:
        self.world = self.makeWorld()
        super().setUp()

    def makeWorld(self) -> World:
        """The world of the tests: the usual one, with their wire."""
        return worldOf(self.mtu)

    def makeReactor(self) -> Any:
        """One that runs as long as the test says; it is let go at the end."""
        reactor = EPollReactor()
        self.addCleanup(self._endReactor, reactor)
        return reactor

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
