"""
Connections between the software device and rxe when a peer disappears.

A peer's process is killed; the interface of a port goes down, temporarily or permanently; the rxe device is
deleted during use. Every request ends with a status, every change causes an event, and nothing hangs.
"""

from __future__ import annotations

import subprocess
import time
from dataclasses import replace

from twisted.trial.unittest import SynchronousTestCase

from txrdma.error import RDMAError
from txrdma.iba.types import GID, MTU, QPN, RKey
from txrdma.iba.verbs import (
    AddressVector,
    AsyncEventKind,
    Operation,
    QPAttributes,
    QPState,
    SendRequest,
    Status,
)
from txrdma.interfaces import IVerbsDevice
from txrdma.soft.device import SoftDevice
from txrdma.test.system.kernel import Box, Witness
from txrdma.test.system.kernel.mate import Mate
from txrdma.test.system.kernel.party import FIRST_PSN
from txrdma.test.system.kernel.world import InTheBox, NAMESPACE, RXE, THERE
from txrdma.testing.verbs.ends import End, PATIENT, TwoEnds
from txrdma.testing.verbs.events import eventsOf, PortContract
from txrdma.testing.verbs.quirks import OURS
from txrdma.testing.verbs.quirks import RXE as RXE_HABITS

BOXES = (Box(rxe=False, timeout=300),)

BRIEF = replace(PATIENT, timeout=14, retryCount=2)
"""Timeout and retries: 0.07 seconds, twice."""

_FLUSHED = Status.WR_FLUSH_ERR


class Torn(InTheBox, TwoEnds):
    """Tests with the software device as first and rxe as second device."""

    quirks = (OURS, RXE_HABITS)
    which = (0, 1)

    def makeDevices(self) -> tuple[IVerbsDevice, IVerbsDevice]:
        """Return both devices, in this process."""
        self.reactor = self.makeReactor()
        self.soft: SoftDevice = self.world.openSoft(self.reactor)
        self.rxe = self.world.openRXE(self.reactor)
        both: list[IVerbsDevice] = [self.soft, self.rxe]
        for device in both:
            self.addCleanup(device.close)
        return both[self.which[0]], both[self.which[1]]

    def gone(self, alice: End) -> None:
        """Assert that Alice's sends fail with exhausted retries, and that her queue pair fails."""
        alice.send(inline=[b"anybody?"], identifier=98)
        alice.send(inline=[b"hello?"], identifier=99)
        self.runPolling(lambda: alice.sent[-1].identifier == 99, alice)
        failed = [completion.status for completion in alice.sent if completion.status]
        self.assertEqual((failed[0], set(failed[1:])), (Status.RETRY_EXC_ERR, {_FLUSHED}))
        self.assertEqual(alice.queuePair.state, QPState.ERR)


class KilledTests(Torn, SynchronousTestCase):
    """The peer runs in its own process, and is killed."""

    witness = Witness("software device", "rxe", "the peer's process is killed, on either side")

    def joined(self, which: int, mate: Mate) -> tuple[End, dict[str, int]]:
        """Return a local end connected to the mate's, and the terms that the mate reported."""
        end = self.end(which)
        reported = mate.ask("open", kind="RC", size=4096)
        end.toInit()
        gid = GID.fromString(reported["gid"])
        port = end.device.portAttributes(1)
        end.queuePair.modify(
            QPAttributes(
                state=QPState.RTR,
                address=AddressVector(gid, sgidIndex=end.gidIndex),
                pathMTU=min(MTU.fitting(reported["mtu"]), port.activeMTU),
                destinationQPN=QPN(reported["qpn"]),
                rqPSN=FIRST_PSN,
                maxDestRDAtomic=4,
                minRNRTimer=12,
            )
        )
        end.toRTS(replace(BRIEF, sqPSN=FIRST_PSN))
        here = {
            "gid": str(end.device.gids(1)[end.gidIndex]),
            "qpn": end.queuePair.number,
            "address": end.memory.address,
            "rkey": end.memory.rkey,
            "mtu": port.activeMTU.bytes,
        }
        mate.ask("connect", peer=here)
        return end, reported

    def killed(self, which: int, mate: Mate) -> None:
        """Kill the peer during a transfer."""
        self.addCleanup(mate.kill)
        end, reported = self.joined(which, mate)
        mate.ask("receive", offset=0, length=64, count=8)
        end.send(inline=[b"are you alive?"])
        self.runUntilCompleted(end, sends=1)
        self.assertEqual(end.sent[0].status, Status.SUCCESS)
        request = SendRequest(3, Operation.RDMA_WRITE, [end.segment(0, 4000)], signaled=False)
        request.remoteAddress, request.rkey = reported["address"], RKey(reported["rkey"])
        end.queuePair.postSend([request] * 20)
        mate.kill()
        self.gone(end)

    def test_rxeKilled(self) -> None:
        """txrdma's sends fail when a process with rxe is killed."""
        self.killed(0, Mate(f"pyverbs:{RXE}"))

    def test_softKilled(self) -> None:
        """rxe's sends fail when a process with a software device is killed."""
        self.soft.close()
        device = f"soft:{THERE}:route=rocev2"
        self.killed(1, Mate(device, "ip", "netns", "exec", NAMESPACE))


class LinkTests(Torn, PortContract, SynchronousTestCase):
    """The interface of either end goes down and comes up; the software device sends requests."""

    witness = Witness(
        "software device", "rxe", "interfaces down and up, at each end; the software device requests"
    )

    isOneWire = True

    def setPort(self, which: int, isUp: bool) -> None:
        """Set the state of a port's interface by C{ip link}."""
        isFar = self.devices[which] is self.soft
        self.world.setLink(isFar, isUp)

    def makeDevices(self) -> tuple[IVerbsDevice, IVerbsDevice]:
        """Return the devices, with both ends of the wire up."""
        self.addCleanup(self.bothUp)
        return super().makeDevices()

    def bothUp(self) -> None:
        """Set both interfaces up, also after the test."""
        for isFar in (False, True):
            self.world.setLink(isFar, True)
        self.world.settle()


class LinkOfRXETests(LinkTests):
    """Tests in which an interface goes down and comes up while rxe sends requests."""

    witness = Witness("software device", "rxe", "interfaces down and up, at each end; the kernel requests")
    quirks = (RXE_HABITS, OURS)
    which = (1, 0)


class DeletedTests(Torn, SynchronousTestCase):
    witness = Witness("software device", "rxe", "the rxe device is deleted while queue pairs live")

    def test_deleted(self) -> None:
        """The peer times out, the local end reports the removal, and a new device works."""
        alice, bob = self.pair(settings=BRIEF)
        for _ in range(8):
            bob.receive(bob.segment())
        alice.send(inline=[b"before"])
        self.runUntilCompleted(bob, receives=1)
        self.runUntilCompleted(alice, sends=1)
        deleting = subprocess.Popen(["rdma", "link", "del", RXE])
        self.addCleanup(deleting.wait)
        try:
            self.runPolling(lambda: bool(eventsOf(bob, AsyncEventKind.DEVICE_FATAL)), alice)
            self.gone(alice)
            self.assertRaises(RDMAError, self.endless, bob)
        finally:
            self.forget(bob)
            bob.close()
            self.rxe.close()
            deadline = time.monotonic() + 30
            while deleting.poll() is None and time.monotonic() < deadline:
                self.reactor.iterate(0.01)
            self.world.addRXE()
        self.assertEqual(deleting.returncode, 0)
        self.again()

    def endless(self, bob: End) -> None:
        """Assert that objects of a removed device refuse everything."""
        bob.device.createProtectionDomain()
        bob.send(inline=[b"."])
        self.fail("a request was accepted")

    def again(self) -> None:
        """Assert that a recreated device works with the existing software device."""
        rxe = self.world.openRXE(self.reactor)
        self.addCleanup(rxe.close)
        self.devices = (self.soft, rxe)
        alice, bob = self.pair()
        bob.receive(bob.segment())
        alice.send(inline=[b"after"])
        self.runUntilCompleted(bob, receives=1)
        self.runUntilCompleted(alice, sends=1)
        self.assertEqual(alice.sent[0].status, Status.SUCCESS)
