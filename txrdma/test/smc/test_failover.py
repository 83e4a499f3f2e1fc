"""
A link group with two links: how it gets the second one, and what becomes of connections when one fails.
"""

from __future__ import annotations

from dataclasses import replace

from txrdma.smc.group.attachment import Port
from txrdma.smc.group.group import Group
from txrdma.smc.group.groups import LinkGroups
from txrdma.test.smc.races import Listener, RaceTestCase
from txrdma.testing.smc.hosts import Host

PATTERN = bytes(range(251)) * 2000


class TwoLinkTestCase(RaceTestCase):
    """Both hosts have two ports, each on a device of its own."""

    def groups(self, host: Host) -> LinkGroups:
        groups = super().groups(host)
        device = self.world.network.device("203.0.113." + host.address.rpartition(".")[2])
        self.addCleanup(device.close)
        [first] = groups.candidates
        port = device.portAttributes(1)
        assert port.mac is not None
        gid = device.gidTable(1)[first.gidIndex].gid
        second = replace(first, gid=gid, mac=port.mac, device=device.name)
        groups.further.append(Port(device, second, groups.maxInline))
        return groups

    def both(self) -> list[Group]:
        """The client's group, and the server's."""
        return [group for host in (self.client, self.server) for group in self.groupsOf[host].groups()]

    def pair(self) -> tuple[Listener, Listener]:
        """A connection, with two links."""
        here, there, _ = self.connect()
        self.until(lambda: here.mode and there.mode)
        self.until(lambda: all(sum(link.isActive for link in group.links) == 2 for group in self.both()))
        return here, there


class SecondLinkTests(TwoLinkTestCase):
    """ADD LINK, and what goes by the second link."""

    def test_added(self) -> None:
        """After the first contact the server adds a second link, and both ends number it."""
        self.pair()
        for group in self.both():
            self.assertEqual([link.life.number for link in group.links], [1, 2])
            self.assertEqual(len({link.port for link in group.links}), 2)

    def test_spread(self) -> None:
        """Connections are spread over both links, and buffers of later connections are known on both."""
        ends = [self.pair() for _ in range(40)]
        for number, (here, there) in enumerate(ends):
            here.transport.write(b"%d" % number)
            there.transport.write(b"%d!" % number)
        self.until(lambda: all(here.heard and there.heard for here, there in ends))
        for number, (here, there) in enumerate(ends):
            self.assertEqual((there.heard, here.heard), (b"%d" % number, b"%d!" % number))
        for group in self.both():
            self.assertEqual([len(link.members) for link in group.links], [20, 20])
            self.assertGreater(len(group.pool), 1)

    def test_onePort(self) -> None:
        """A client with one port, whose server has two, has one link, and nothing is kept for another."""
        self.groupsOf[self.client].further.clear()
        here, there, _ = self.connect()
        self.until(lambda: here.mode and there.mode)
        self.wait(1)
        here.transport.write(b"hello")
        self.until(lambda: there.heard == b"hello")
        for group in self.both():
            [link] = group.links
            self.assertIsNone(link.turn.poster.kept)


class FailoverTests(TwoLinkTestCase):
    """One of the links fails."""

    def breakOne(self, ends: list[tuple[Listener, Listener]], at: int, host: int) -> None:
        """Break a link at one end; the other end learns it by LLC."""
        group = self.both()[host]
        group.links[at].broken("for the test")
        self.wait(0.2)
        for group in self.both():
            self.assertEqual(len(group.links), 1)
            self.assertEqual(len(group.links[0].members), len(ends))

    def test_idle(self) -> None:
        """Idle connections go on by the other link, whichever fails and wherever it does."""
        for at in (0, 1):
            for host in (0, 1):
                self.setUp()
                ends = [self.pair() for _ in range(6)]
                self.breakOne(ends, at, host)
                for here, there in ends:
                    here.transport.write(b"ping")
                    there.transport.write(b"pong")
                self.until(lambda ends=ends: all(a.heard and b.heard for a, b in ends))  # type: ignore[misc]
                for here, there in ends:
                    self.assertEqual((here.heard, there.heard), (b"pong", b"ping"))
                    self.assertEqual((here.reason, there.reason), (None, None))

    def underLoad(self, steps: int, host: int, at: int, lost: int) -> None:
        """
        Break a link in the middle of transfers in both directions, after so many turns of the world.

        @param lost: turns before, in which all is lost that goes by the link.
        """
        ends = [self.pair() for _ in range(4)]
        for here, there in ends:
            here.transport.write(PATTERN)
            there.transport.write(PATTERN[::-1])
        for _ in range(steps):
            self.world.turn()
        link = self.both()[host].links[at]
        if lost:
            network = ("198.51.100", "203.0.113")[at]
            self.world.network.partition(f"{network}.1", f"{network}.2")
            for _ in range(lost):
                self.world.turn()
        link.broken("for the test")
        self.until(
            lambda: all(len(a.heard) >= len(PATTERN) and len(b.heard) >= len(PATTERN) for a, b in ends), 60
        )
        for here, there in ends:
            self.assertTrue(there.heard == PATTERN and here.heard == PATTERN[::-1], "bytes differ")
            here.transport.loseConnection()
            there.transport.loseConnection()
        self.until(lambda: all(a.reason and b.reason for a, b in ends), 20)
        for group in self.both():
            self.assertEqual(group.core.connections, {})

    def test_underLoad(self) -> None:
        """Nothing is lost and nothing comes twice, at whatever moment the link fails."""
        for steps in (0, 1, 5, 20, 60, 150, 300):
            for host in (0, 1):
                for at in (0, 1):
                    self.setUp()
                    self.underLoad(steps, host, at, lost=0)

    def test_cut(self) -> None:
        """Nothing is lost and nothing comes twice where packets are lost some time before the link fails."""
        for steps in (3, 30, 100):
            for lost in (1, 10, 200):
                for at in (0, 1):
                    self.setUp()
                    self.underLoad(steps, steps % 2, at, lost)

    def test_last(self) -> None:
        """When both links have failed, connections end."""
        here, there = self.pair()
        group = self.both()[0]
        for link in list(group.links):
            link.broken("for the test")
        self.until(lambda: here.reason and there.reason, 20)
