"""
C{smc:} in a process that may pin 8 MiB, the default of C{ulimit -l} for unprivileged users.
"""

from __future__ import annotations

from typing import Any

from txrdma.smc.flow.sendqueue import STAGE
from txrdma.smc.group.buffers import PINNED_RING
from txrdma.smc.group.groups import LinkGroups, useDevice
from txrdma.test.support.pinning import Pinned
from txrdma.test.support.smc.races import Listener, RaceTestCase
from txrdma.testing.smc.hosts import Host
from txrdma.testing.smc.scenario import DEVICE

LIMIT = 8 << 20
EXCHANGED = 2 * LIMIT
"""Bytes that all clients together send, and the server as well."""

PEERS = 4

RECEIVES = 64 * 48
"""Bytes of the receives of a link."""


class Counting(Listener):
    count = 0

    def dataReceived(self, data: bytes) -> None:
        self.count += len(data)


class PinnedTests(RaceTestCase):
    """Two hosts, each with a process that may pin 8 MiB."""

    def setUp(self) -> None:
        self.pinned: dict[Host, Pinned] = {}
        super().setUp()

    def groups(self, host: Host) -> LinkGroups:
        """Limit the memory of a host, and leave the size of rings to the group."""
        pinned = self.pinned[host] = Pinned(LIMIT)
        made = self.groupsOf[host] = useDevice(host, DEVICE, pinned.limit(host.openDevice()))
        return made

    def test_allConnectionsUseSMCInBothDirections(self) -> None:
        ends: list[tuple[Any, Any]] = [self.connect(Counting(), Counting())[:2] for _ in range(PEERS)]
        both = [end for pair in ends for end in pair]
        self.until(lambda: all(end.mode for end in both))
        self.assertEqual({end.mode for end in both}, {"SMC-R"})
        length = EXCHANGED // PEERS
        for end in both:
            end.transport.write(bytes(length))
        self.until(lambda: all(end.count == length for end in both), 600.0)
        for pinned in self.pinned.values():
            self.assertLess(pinned.peak, LIMIT // 2)

    def test_missingMemoryHalvesRingOfConnection(self) -> None:
        for pinned in self.pinned.values():
            pinned.most = STAGE + RECEIVES + PINNED_RING // 2
        here, there = Counting(), Counting()
        self.connect(here, there)
        self.until(lambda: here.mode and there.mode)
        self.assertEqual((here.mode, there.mode), ("SMC-R", "SMC-R"))
        here.transport.write(bytes(LIMIT))
        self.until(lambda: there.count == LIMIT, 600.0)
        for host in (self.client, self.server):
            [group] = self.groupsOf[host].groups()
            self.assertEqual([buffer.size for buffer in group.pool], [PINNED_RING // 2])
