"""
Link groups that become full while connections are on their way: whoever comes late gets the next group.
"""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred

from txrdma.smc.group._linkgroup import MAX_CONNECTIONS
from txrdma.smc.group.group import Group
from txrdma.test.support.smc.races import Listener, RaceTestCase


class FullGroupTests(RaceTestCase):
    """More connections at once than a group takes."""

    slowBecause = "A full group has 255 connections, and each of them has a handshake."

    def connectMany(self, count: int) -> list[tuple[Listener, Listener]]:
        """So many clients connect at once, and all come through."""
        ends = [self.connect()[:2] for _ in range(count)]
        self.until(lambda: all(here.mode and there.mode for here, there in ends), 60.0)
        return ends

    def assertSMC(self, ends: list[tuple[Listener, Listener]]) -> None:
        """All ends are SMC-R, and each carries bytes both ways."""
        modes = [end.mode for pair in ends for end in pair]
        self.assertEqual(modes.count("SMC-R"), len(modes))
        for number, pair in enumerate(ends):
            for end in pair:
                end.transport.write(b"%d" % number)
        self.until(lambda: all(here.received and there.received for here, there in ends))
        for number, pair in enumerate(ends):
            self.assertEqual([end.received for end in pair], [b"%d" % number] * 2)

    def sizes(self) -> list[list[int]]:
        """Connections of each group, of the client and of the server."""
        groups = (self.groupsOf[host] for host in (self.client, self.server))
        return [sorted(len(group.core.connections) for group in each.groups()) for each in groups]

    def test_burst(self) -> None:
        """
        A burst beyond two groups makes a third, and none of it falls back.

        Each end waits for one group, and for none that others will fill.
        """
        waits = []
        confirmed = Group.confirmed

        def counting(group: Group) -> Deferred[None]:
            waits.append(group)
            return confirmed(group)

        self.patch(Group, "confirmed", counting)
        ends = self.connectMany(2 * MAX_CONNECTIONS + 10)
        self.assertEqual(len(waits), 2 * MAX_CONNECTIONS + 10 + 3)  # three clients, too
        self.assertSMC(ends)
        self.assertEqual(self.sizes(), [[10, MAX_CONNECTIONS, MAX_CONNECTIONS]] * 2)

    def test_later(self) -> None:
        """A group that has some connections is filled by a burst, and the rest gets the next."""
        ends = self.connectMany(200)
        ends += self.connectMany(100)
        self.assertSMC(ends)
        self.assertEqual(self.sizes(), [[300 - MAX_CONNECTIONS, MAX_CONNECTIONS]] * 2)

    def test_room(self) -> None:
        """A place in a full group that a connection has left is taken by the next."""
        ends = self.connectMany(MAX_CONNECTIONS)
        for here, _there in ends[:20]:
            here.transport.loseConnection()
        self.until(lambda: all(there.hasEnded for _here, there in ends[:20]))
        for _here, there in ends[:20]:
            there.transport.loseConnection()
        self.until(lambda: all(here.reason and there.reason for here, there in ends[:20]))
        self.wait(1.0)
        ends = ends[20:] + self.connectMany(20)
        self.assertSMC(ends)
        self.assertEqual(self.sizes(), [[MAX_CONNECTIONS]] * 2)

    def test_groupEndsMeanwhile(self) -> None:
        """A server whose group ends while it tells the client of a buffer answers with another group."""
        self.connectMany(1)
        [group] = self.groupsOf[self.server].groups()
        [link] = group.links
        grown = group.pool.grow

        def ending(*arguments: Any) -> object:
            self.world.clock.callLater(0, group.close, "the test says so")
            return grown(*arguments)

        self.patch(group.pool, "grow", ending)
        [first] = self.connectMany(1)
        while group.pool.withFreeElement(16384) is not None:  # until a buffer has to be asked for
            self.connectMany(1)
        ends = self.connectMany(1)
        self.assertTrue(link.isOver)
        self.assertSMC(ends)
