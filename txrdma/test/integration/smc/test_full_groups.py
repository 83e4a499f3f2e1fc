"""
Link groups that become full while connections are being established: further connections use the next group.
"""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred

from txrdma.smc.group.group import LinkGroup
from txrdma.smc.terms.offer import MOST_CONNECTIONS
from txrdma.test.support.smc.races import Listener, RaceTestCase


class FullGroupTests(RaceTestCase):
    """More simultaneous connections than a link group can have."""

    slowBecause = "A full group has 255 connections, and each of them has a handshake."

    def connectMany(self, count: int) -> list[tuple[Listener, Listener]]:
        """Establish this number of connections at once."""
        ends = [self.connect()[:2] for _ in range(count)]
        self.until(lambda: all(here.mode and there.mode for here, there in ends), 60.0)
        return ends

    def assertSMC(self, ends: list[tuple[Listener, Listener]]) -> None:
        """Assert that all ends use SMC-R, and transfer data in both directions."""
        modes = [end.mode for pair in ends for end in pair]
        self.assertEqual(modes.count("SMC-R"), len(modes))
        for number, pair in enumerate(ends):
            for end in pair:
                end.transport.write(b"%d" % number)
        self.until(lambda: all(here.received and there.received for here, there in ends))
        for number, pair in enumerate(ends):
            self.assertEqual([end.received for end in pair], [b"%d" % number] * 2)

    def sizes(self) -> list[list[int]]:
        """Return the numbers of connections in each group, of the client and of the server."""
        groups = (self.groupsOf[host] for host in (self.client, self.server))
        return [sorted(len(group.core.connections) for group in each.groups()) for each in groups]

    def test_burst(self) -> None:
        """
        A burst that exceeds two groups creates a third, and no connection falls back.

        Each end waits for one group, and not for groups that other connections will fill.
        """
        waits = []
        confirmed = LinkGroup.confirmed

        def counting(group: LinkGroup) -> Deferred[None]:
            waits.append(group)
            return confirmed(group)

        self.patch(LinkGroup, "confirmed", counting)
        ends = self.connectMany(2 * MOST_CONNECTIONS + 10)
        self.assertEqual(len(waits), 2 * MOST_CONNECTIONS + 10 + 3)  # 3: clients wait in a first contact only
        self.assertSMC(ends)
        self.assertEqual(self.sizes(), [[10, MOST_CONNECTIONS, MOST_CONNECTIONS]] * 2)

    def test_burstFillsGroupAndOthersUseNextGroup(self) -> None:
        ends = self.connectMany(200)
        ends += self.connectMany(100)
        self.assertSMC(ends)
        self.assertEqual(self.sizes(), [[300 - MOST_CONNECTIONS, MOST_CONNECTIONS]] * 2)

    def test_elementsOfEndedConnectionsAreReused(self) -> None:
        ends = self.connectMany(MOST_CONNECTIONS)
        for here, _there in ends[:20]:
            here.transport.loseConnection()
        self.until(lambda: all(there.hasEnded for _here, there in ends[:20]))
        for _here, there in ends[:20]:
            there.transport.loseConnection()
        self.until(lambda: all(here.reason and there.reason for here, there in ends[:20]))
        self.wait(1.0)
        ends = ends[20:] + self.connectMany(20)
        self.assertSMC(ends)
        self.assertEqual(self.sizes(), [[MOST_CONNECTIONS]] * 2)

    def test_anotherGroupIsUsedIfGroupEndsWhileAnnouncingBuffer(self) -> None:
        self.connectMany(1)
        [group] = self.groupsOf[self.server].groups()
        [link] = group.links
        grown = group.pool.grow

        def ending(*arguments: Any) -> object:
            self.world.clock.callLater(0, group.close, "the test says so")
            return grown(*arguments)

        self.patch(group.pool, "grow", ending)
        [first] = self.connectMany(1)
        while group.pool.withFreeElement(16384) is not None:  # until a new buffer must be announced
            self.connectMany(1)
        ends = self.connectMany(1)
        self.assertTrue(link.isOver)
        self.assertSMC(ends)
