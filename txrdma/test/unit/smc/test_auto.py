"""
C{device=auto}: real RDMA ports first, then shared memory, then TCP.

The real port is one of the software device's here; the kernel suites test that of pyverbs (test_auto).
"""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from txrdma.error import Refused
from txrdma.ports import pnet
from txrdma.ports.pnettable import PNETFinding, RDMAPort
from txrdma.smc.common import realports
from txrdma.smc.common.realports import LIFE, RealPorts
from txrdma.smc.handshake.negotiation import Negotiation
from txrdma.smc.terms.options import LOCAL_DEVICE
from txrdma.unix import sockets as unixsockets


class Networks:
    """Networks of a host, which counts how often they are read."""

    polls = 0
    finding = PNETFinding(RDMAPort("mlx5_0", 1, frozenset({"eth0"}), True), "it is there")

    @classmethod
    def read(cls) -> Networks:
        cls.polls += 1
        return cls()

    def portFor(self, own: str, peer: str) -> PNETFinding:
        return self.finding


class RealPortsTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.now = 1000.0
        self.patch(realports, "monotonic", lambda: self.now)
        self.patch(realports, "hasPyverbs", lambda: True)
        self.folder = Path(self.mktemp())
        self.patch(realports, "DEVICES", str(self.folder))
        self.patch(pnet, "Networks", Networks)
        self.patch(Networks, "polls", 0)
        self.ports = RealPorts()

    def test_most(self) -> None:
        """Choices for a bounded number of pairs of addresses are cached, however many clients there are."""
        (self.folder / "mlx5_0").mkdir(parents=True)
        self.patch(realports, "_MOST_CHOICES", 4)
        for number in range(10):
            self.ports.portFor("192.0.2.1", f"192.0.2.{number}")
            self.assertLessEqual(len(self.ports._choices), 4)
        self.assertGreater(len(self.ports._choices), 0)

    def test_missingDevicesAreCachedAsMissing(self) -> None:
        self.assertIsNone(self.ports.portFor("10.0.0.1", "10.0.0.2"))
        (self.folder / "mlx5_0").mkdir(parents=True)
        self.assertFalse(self.ports.isAny())
        self.now += LIFE
        self.assertTrue(self.ports.isAny())
        self.assertEqual(Networks.polls, 0)

    def test_withoutPyverbs(self) -> None:
        (self.folder / "mlx5_0").mkdir(parents=True)
        self.patch(realports, "hasPyverbs", lambda: False)
        self.assertIsNone(self.ports.portFor("10.0.0.1", "10.0.0.2"))

    def test_thousandConnectionsScanOnce(self) -> None:
        (self.folder / "mlx5_0").mkdir(parents=True)
        for number in range(1000):
            found = self.ports.portFor("10.0.0.1", f"10.0.1.{number % 250}")
            self.assertEqual(found, ("pyverbs:mlx5_0", 1))
        self.assertEqual(Networks.polls, 1)
        self.now += LIFE
        self.patch(Networks, "finding", PNETFinding(None, "it is gone"))
        self.assertIsNone(self.ports.portFor("10.0.0.1", "10.0.1.1"))
        self.assertEqual(Networks.polls, 2)

    def test_failedDeviceIsRetriedLater(self) -> None:
        (self.folder / "mlx5_0").mkdir(parents=True)
        self.ports.fail("pyverbs:mlx5_0")
        self.assertIsNone(self.ports.portFor("10.0.0.1", "10.0.0.2"))
        self.now += LIFE
        self.assertIsNotNone(self.ports.portFor("10.0.0.1", "10.0.0.2"))


class SameUserTests(SynchronousTestCase):
    """Which peers on this host share memory with this process by default."""

    def deviceFor(self, user: int | None) -> str:
        """Return the device for a peer that runs as this user."""
        negotiation: Any = SimpleNamespace(_peer=SimpleNamespace(directory="", user=user))
        return Negotiation._localDevice(negotiation)

    def test_onlyPeersOfSameUserShareMemory(self) -> None:
        self.patch(unixsockets, "unmapped", frozenset)
        self.assertEqual(self.deviceFor(os.geteuid()), LOCAL_DEVICE)
        for other in (os.geteuid() + 1, None):
            self.assertRaises(Refused, self.deviceFor, other)

    def test_unmappedUser(self) -> None:
        """A user who is not mapped into this user namespace is another user, even with the same number."""
        self.patch(unixsockets, "unmapped", lambda: frozenset({os.geteuid()}))
        self.assertRaises(Refused, self.deviceFor, os.geteuid())
