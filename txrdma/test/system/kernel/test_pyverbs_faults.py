"""
The kernel's devices, through pyverbs, when something is removed during use.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from twisted.internet.epollreactor import EPollReactor
from twisted.internet.selectreactor import SelectReactor
from twisted.trial.unittest import SynchronousTestCase

from txrdma.error import DeviceUnavailable
from txrdma.iba.types import GID, QPN
from txrdma.iba.verbs import (
    Access,
    AddressVector,
    AsyncEventKind,
    Completion,
    Operation,
    PortState,
    QPAttributes,
    QPState,
    ReceiveRequest,
    SendRequest,
    Status,
)
from txrdma.interfaces import IVerbsDevice
from txrdma.test.system.kernel import Box, OUTSIDE, record, Witness
from txrdma.testing.reactors import RealTime
from txrdma.testing.verbs.ends import End, EVERYTHING, PATIENT, TwoEnds
from txrdma.testing.verbs.quirks import RXE
from txrdma.verbs.completions import CompletionReader, ReaderReactor
from txrdma.verbs.devices import openDevice

BOXES = (Box(mtu=4200, timeout=600),)

LIVES = 30
"""Number of random lives of L{txrdma.test.system.kernel.orders} in one test."""

_CHECKOUT = Path(__file__).parents[4]
_FLUSHED = Status.WR_FLUSH_ERR
_HASTY = replace(PATIENT, timeout=10, retryCount=1, rnrRetry=1)


def run(*words: str) -> None:
    """Run a system program that must succeed."""
    subprocess.run(words, check=True, capture_output=True, text=True)


class Kernel(RealTime, TwoEnds):
    """C{rxe0} and C{rxe1} on a new reactor."""

    skip = OUTSIDE
    quirks = (RXE, RXE)
    makeReactor: Callable[[], Any] = EPollReactor
    slowness = 20.0

    def makeDevices(self) -> tuple[IVerbsDevice, IVerbsDevice]:
        """Return the devices at the two ends of a wire."""
        self.reactor = type(self).makeReactor()
        one, other = (openDevice(self.reactor, name) for name in ("pyverbs:rxe0", "pyverbs:rxe1"))
        for device in (one, other):
            self.addCleanup(device.close)
        return one, other


class RemovalTests(Kernel, SynchronousTestCase):
    """C{rdma link del} deletes the device during use."""

    witness = Witness("pyverbs", "rxe", "device deleted under live queue pairs")

    def remove(self, name: str = "rxe1", netdev: str = "v1") -> subprocess.Popen[bytes]:
        """Delete the device, which takes effect when nobody has it open; recreate it after the test."""
        deleting = subprocess.Popen(["rdma", "link", "del", name])

        def restore() -> None:
            for device in self.devices:
                device.close()
            self.assertEqual(deleting.wait(60), 0)
            run("rdma", "link", "add", name, "type", "rxe", "netdev", netdev)
            self.runUntil(lambda: _hasGID(name))

        self.addCleanup(restore)
        return deleting

    def test_removed(self) -> None:
        """Everything outstanding is flushed, subscribers are notified, and the kernel is not blocked."""
        alice, bob = self.pair(settings=_HASTY)
        for index in range(3):
            bob.receive(bob.segment(), identifier=index)
        bob.send(bob.fill(b"nobody has posted a receive"), identifier=10)
        bob.send(bob.fill(b"nor for this"), identifier=11, signaled=False)
        bob.receives.arm()
        deleting = self.remove()
        self.runUntil(lambda: any(e.kind is AsyncEventKind.DEVICE_FATAL for e in bob.events))
        self.runUntil(lambda: deleting.poll() is not None)
        self.assertEqual(deleting.returncode, 0)
        self.assertEqual(bob.queuePair.state, QPState.ERR)
        self.assertEqual(list(bob.channel.takeEvents()), [bob.receives])
        bob.poll()
        self.assertEqual(bob.statuses()[1], [_FLUSHED] * 3)
        self.assertEqual([c.identifier for c in bob.received], [0, 1, 2])
        self.assertEqual([c.identifier for c in bob.sent], [10, 11])
        self.assertNotIn(Status.SUCCESS, bob.statuses()[0])
        alice.send(alice.fill(b"anybody?"))
        self.runUntilCompleted(alice, sends=1)
        self.assertEqual(alice.sent[0].status, Status.RETRY_EXC_ERR)

    def test_afterwards(self) -> None:
        """Objects of a removed device refuse requests, and can be closed, also twice."""
        _alice, bob = self.pair()
        shared = bob.domain.createSharedReceiveQueue(4, 1)
        handle = bob.domain.createAddressHandle(bob.destinationOf(bob))
        buffer = bytearray(b"still ours")
        region = bob.domain.registerMemory(memoryview(buffer), Access.LOCAL_WRITE)
        self.remove()
        self.runUntil(lambda: bool(bob.events))
        device = bob.device
        for ask in (
            device.createProtectionDomain,
            device.createChannel,
            lambda: device.createCompletionQueue(4, bob.channel),
            lambda: device.portAttributes(1),
            lambda: device.gids(1),
            lambda: bob.domain.allocateMemory(10, EVERYTHING),
            lambda: bob.send(bob.segment()),
            lambda: bob.receive(bob.segment()),
            lambda: shared.postReceive([ReceiveRequest(1)]),
            lambda: shared.arm(1),
            bob.queuePair.query,
        ):
            self.assertRaises(DeviceUnavailable, cast("Callable[[], object]", ask))
        bob.receives.arm()
        self.assertEqual(list(bob.receives.poll(10)), [])
        self.assertEqual(bytes(region.view), b"still ours")
        for thing in (device, shared, handle, region, bob, bob.queuePair, bob.memory):
            thing.close()
            thing.close()
        self.assertRaises(DeviceUnavailable, device.gids, 1)

    def test_sleeper(self) -> None:
        """A sleeping completion reader wakes up and receives the flushed completions."""
        _alice, bob = self.pair()
        got: list[Completion] = []
        reader = CompletionReader(self.reactor, bob.channel, [bob.sends, bob.receives], got.extend)
        reader.start()
        self.addCleanup(reader.stop)
        for index in range(5):
            bob.receive(bob.segment(), identifier=index)
        self.runFor(0.5)
        self.remove()
        self.runUntil(lambda: len(got) == 5)
        self.assertEqual({completion.status for completion in got}, {_FLUSHED})
        reader.stop()

    def test_gone(self) -> None:
        """A missing device is reported as unavailable."""
        error = self.assertRaises(DeviceUnavailable, openDevice, self.reactor, "pyverbs:rxe9")
        self.assertIn("rxe9", str(error))


def _hasGID(name: str) -> bool:
    """Return whether the device has the GID, which the kernel creates asynchronously."""
    zero = "0000:0000:0000:0000:0000:0000:0000:0000"
    try:
        gids = (Path(f"/sys/class/infiniband/{name}/ports/1/gids/{index}").read_text() for index in (0, 1))
        return all(gid.strip() != zero for gid in gids)
    except OSError:
        return False


class PortTests(Kernel, SynchronousTestCase):
    """The network interface goes down and comes up."""

    witness = Witness("pyverbs", "rxe", "interface down and up: events, retries")

    def setLink(self, isUp: bool) -> None:
        """Set the state of C{v1}, and restore the guest's routes, which are lost with it."""
        run("ip", "link", "set", "v1", "up" if isUp else "down")
        if isUp:
            mac = Path("/sys/class/net/v0/address").read_text().strip()
            run("ip", "neigh", "replace", "10.77.0.1", "lladdr", mac, "dev", "v1", "nud", "permanent")
            run("ip", "route", "replace", "10.77.0.1", "dev", "v1", "src", "10.77.0.2", "table", "101")

    def test_downAndUp(self) -> None:
        """Events and the port's state report the change; a connection times out, and a new one works."""
        alice, bob = self.pair(settings=_HASTY)
        self.addCleanup(self.setLink, True)
        self.setLink(False)
        self.runUntil(lambda: any(e.kind is AsyncEventKind.PORT_ERROR for e in bob.events))
        self.assertNotEqual(bob.device.portAttributes(1).state, PortState.ACTIVE)
        alice.send(alice.fill(b"anybody?"))
        self.runUntilCompleted(alice, sends=1)
        # the other end of a wire that is down has no carrier; rxe reports "flushed" for what it cannot send
        self.assertIn(alice.sent[0].status, (Status.RETRY_EXC_ERR, _FLUSHED))
        self.assertIs(alice.queuePair.state, QPState.ERR)
        del bob.events[:]
        self.setLink(True)
        self.runUntil(lambda: any(e.kind is AsyncEventKind.PORT_ACTIVE for e in bob.events))
        self.assertEqual({e.port for e in bob.events}, {1})
        self.runUntil(lambda: bob.device.portAttributes(1).state is PortState.ACTIVE)
        self.runUntil(lambda: _hasGID("rxe1"))
        alice, bob = self.pair()
        bob.receive(bob.segment())
        alice.send(alice.fill(b"again"))
        self.runUntilCompleted(bob, receives=1)
        self.assertEqual(bob.received[0].status, Status.SUCCESS)


_PEER = """
import sys
from twisted.internet.epollreactor import EPollReactor
from txrdma.testing.verbs.ends import End
from txrdma.verbs.devices import openDevice
import txrdma.test.system.kernel.test_pyverbs_faults as faults
end = End(openDevice(EPollReactor(), "pyverbs:rxe1"))
print(int(end.queuePair.number), end.memory.address, int(end.memory.rkey), flush=True)
faults.connectTo(end, int(sys.stdin.readline()))
end.receive(end.segment())
print("ready", flush=True)
sys.stdin.readline()
"""


def connectTo(end: End, number: int, device: IVerbsDevice | None = None) -> None:
    """Connect to the queue pair with this number at the other end of the wire."""
    here = end.device.gids(1)[end.gidIndex]
    there = "10.77.0.1" if here.ip == "10.77.0.2" else "10.77.0.2"
    end.toInit()
    end.queuePair.modify(
        QPAttributes(
            state=QPState.RTR,
            address=AddressVector(GID.fromIP(there), sgidIndex=end.gidIndex),
            pathMTU=end.device.portAttributes(1).activeMTU,
            destinationQPN=QPN(number),
            rqPSN=_HASTY.rqPSN,
            maxDestRDAtomic=1,
            minRNRTimer=1,
        )
    )
    end.toRTS(_HASTY)


class KilledPeerTests(Kernel, SynchronousTestCase):
    """The peer is another process, and is killed."""

    witness = Witness("pyverbs", "rxe", "the peer's process is killed")

    def test_killed(self) -> None:
        """Retries are exhausted, later requests are flushed, and the other device continues."""
        peer = subprocess.Popen(
            [sys.executable, "-c", _PEER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=_CHECKOUT,
            text=True,
        )
        self.addCleanup(peer.wait)
        self.addCleanup(peer.kill)
        assert peer.stdin is not None and peer.stdout is not None
        self.addCleanup(peer.stdin.close)
        self.addCleanup(peer.stdout.close)
        number, address, rkey = map(int, peer.stdout.readline().split())
        alice = self.end(0)
        peer.stdin.write(f"{int(alice.queuePair.number)}\n")
        peer.stdin.flush()
        connectTo(alice, number)
        self.assertEqual(peer.stdout.readline(), "ready\n")
        alice.send(alice.fill(b"hello"))
        self.runUntilCompleted(alice, sends=1)
        self.assertEqual(alice.sent.pop().status, Status.SUCCESS)
        os.kill(peer.pid, signal.SIGKILL)
        peer.wait()
        write = SendRequest(2, Operation.RDMA_WRITE, [alice.segment()], remoteAddress=address)
        write.rkey = cast(Any, rkey)
        alice.queuePair.postSend([write, SendRequest(3, Operation.SEND, [alice.segment()])])
        self.runUntilCompleted(alice, sends=2)
        self.assertEqual(alice.statuses()[0], [Status.RETRY_EXC_ERR, _FLUSHED])
        self.assertEqual(alice.queuePair.state, QPState.ERR)


class ReaderTests(Kernel, SynchronousTestCase):
    """Completions delivered by the reactor."""

    witness = Witness("pyverbs", "rxe", "completion reader on epoll")

    def test_completions(self) -> None:
        """A reader delivers a hundred messages and completions of both ends, and sleeps between them."""
        alice, bob = self.pair()
        sent: list[Completion] = []
        received: list[Completion] = []

        def take(batch: Sequence[Completion]) -> None:
            received.extend(batch)
            for completion in batch:
                bob.receive(bob.segment(), identifier=completion.identifier)

        readers = [
            CompletionReader(cast(ReaderReactor, self.reactor), alice.channel, [alice.sends], sent.extend),
            CompletionReader(cast(ReaderReactor, self.reactor), bob.channel, [bob.receives], take),
        ]
        for reader in readers:
            reader.start()
            self.addCleanup(reader.stop)
        for index in range(16):
            bob.receive(bob.segment(), identifier=index)
        began = time.monotonic()
        for index in range(100):
            alice.send(alice.fill(b"%03d" % index), identifier=index)
            if index % 5 == 4:
                self.runUntil(lambda wanted=index + 1: len(sent) == wanted == len(received))  # type: ignore[misc]  # a default in a lambda
            if index % 25 == 24:
                self.runFor(0.1)
        record("seconds for 100 messages", round(time.monotonic() - began, 3))
        self.assertEqual([c.identifier for c in sent], list(range(100)))
        self.assertEqual({c.status for c in sent + received}, {Status.SUCCESS})
        self.assertEqual([c.identifier for c in received], [index % 16 for index in range(100)])


class SelectReaderTests(ReaderTests):
    witness = Witness("pyverbs", "rxe", "completion reader on select")
    makeReactor = SelectReactor


class OrderTests(SynchronousTestCase):
    """Objects closed, closed twice and dropped in random orders: L{txrdma.test.system.kernel.orders}."""

    skip = OUTSIDE
    witness = Witness("pyverbs", "rxe", "closed in any order, twice, or never")

    def lives(self, first: int, count: int) -> None:
        """Run lives in a process, which must succeed."""
        done = subprocess.run(
            [
                sys.executable,
                "-X",
                "faulthandler",
                "-m",
                "txrdma.test.system.kernel.orders",
                str(first),
                str(count),
            ],
            cwd=_CHECKOUT,
            capture_output=True,
            text=True,
            timeout=300,
        )
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout[-2000:])
        self.assertTrue(done.stdout.endswith("done\n"), done.stdout[-2000:])

    def test_manyLives(self) -> None:
        first = int.from_bytes(os.urandom(4), "big")
        record("first seed", first)
        self.lives(first, LIVES)

    def test_ends(self) -> None:
        """Single lives, each in a process that exits immediately afterwards."""
        first = int.from_bytes(os.urandom(4), "big")
        record("first seed", first)
        for seed in range(first, first + 3):
            self.lives(seed, 1)

    def endsWell(self, *lines: str) -> None:
        """Check that a program with three ends exits successfully."""
        program = (
            "import os, sys, time",
            "from twisted.internet.epollreactor import EPollReactor",
            "from txrdma.testing.verbs.ends import End",
            "from txrdma.verbs.devices import openDevice",
            "reactor = EPollReactor()",
            "ends = [End(openDevice(reactor, f'pyverbs:rxe{index % 2}')) for index in range(3)]",
            *lines,
            "print('done')",
        )
        done = subprocess.run(
            [sys.executable, "-X", "faulthandler", "-c", "\n".join(program)],
            cwd=_CHECKOUT,
            capture_output=True,
            text=True,
            timeout=300,
        )
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "done\n", ""))

    def test_neverClosed(self) -> None:
        """A process that closes nothing exits successfully."""
        self.endsWell("ends[0].domain.left = ends")

    def test_forked(self) -> None:
        """A forked process that exits, or closes inherited objects, does not affect its parent."""
        self.endsWell(
            "one, other, _third = ends",
            "for end in (one, other): end.toInit()",
            "one.toRTR(other); other.toRTR(one); one.toRTS(); other.toRTS()",
            "for closes in (False, True):",
            "    if not (child := os.fork()):",
            "        if closes: one.device.close()",
            "        sys.exit()",
            "    assert os.waitpid(child, 0)[1] == 0",
            "other.receive(other.segment())",
            "one.send(one.segment())",
            "until = time.monotonic() + 30",
            "while not other.received and time.monotonic() < until: other.poll()",
            "assert other.received[0].status == 0, other.received",
        )
