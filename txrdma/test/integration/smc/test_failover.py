"""
A link group with two links: how it gets the second one, and what becomes of connections when one fails.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

from twisted.internet.error import ConnectionLost

from txrdma.iba.verbs import AsyncEventKind
from txrdma.interfaces import AsyncEvent
from txrdma.smc.group.group import Group
from txrdma.smc.group.groups import LinkGroups, useDevice
from txrdma.test.support.smc.races import Listener, RaceTestCase
from txrdma.testing.smc.hosts import Host
from txrdma.testing.smc.scenario import DEVICE

PATTERN = bytes(range(251)) * 1000


class TwoLinkTestCase(RaceTestCase):
    """Both hosts have two ports, each on a device of its own."""

    def groups(self, host: Host) -> LinkGroups:
        device = self.world.network.device("203.0.113." + host.address.rpartition(".")[2])
        groups = useDevice(host, DEVICE, host.openDevice(), device)
        groups.ringSize = lambda: 16384  # type: ignore[method-assign]  # they are larger else
        self.groupsOf[host] = groups
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
        self.until(lambda: all(here.received and there.received for here, there in ends))
        for number, (here, there) in enumerate(ends):
            self.assertEqual((there.received, here.received), (b"%d" % number, b"%d!" % number))
        for group in self.both():
            self.assertEqual([len(link.members) for link in group.links], [20, 20])
            self.assertGreater(len(group.pool), 1)

    def test_onePort(self) -> None:
        """A client with one port, whose server has two, has one link, and nothing is kept for another."""
        self.groupsOf[self.client].devices.pop().close()
        self.groupsOf[self.client]._portsChanged()
        here, there, _ = self.connect()
        self.until(lambda: here.mode and there.mode)
        self.wait(1)
        here.transport.write(b"hello")
        self.until(lambda: there.received == b"hello")
        for group in self.both():
            [link] = group.links
            self.assertIsNone(link.scheduler.queue.unacknowledged)


class AsymmetricTests(TwoLinkTestCase):
    """One end has a port less than the other."""

    def links(self, host: Host) -> list[tuple[str, str]]:
        """The active links of a host, as the GIDs of both ends."""
        [group] = self.groupsOf[host].groups()
        return [
            (str(life.local.gid.ip), str(life.remote.gid.ip))
            for life in (link.life for link in group.links if link.isActive)
            if life.remote is not None
        ]

    def test_grows(self) -> None:
        """Two links share the only port of one end; when it has another, no link shares one any more."""
        for host in (self.client, self.server):
            self.setUp()
            mine = (self.client, self.server)[host is self.server]
            device: Any = self.groupsOf[mine].devices[1]
            device.setPortEnabled(1, False)
            self.wait(0.1)
            self.pair()
            self.assertEqual(len(self.links(mine)), 2)
            self.assertEqual(len({one for one, _ in self.links(mine)}), 1)
            self.assertEqual(len({other for _, other in self.links(mine)}), 2)
            device.setPortEnabled(1, True)
            self.until(lambda mine=mine: len({one for one, _ in self.links(mine)}) == 2)  # type: ignore[misc]
            self.wait(1)
            self.assertEqual(len(self.links(mine)), 2)
            for each in zip(*self.links(mine), strict=True):
                self.assertEqual(len(set(each)), 2)

    def test_eight(self) -> None:
        """Both ends may want more links than two, as many as there are ports; each joins two of its own."""
        for host in (self.client, self.server):
            number = host.address.rpartition(".")[2]
            more = [self.world.network.device(f"192.0.2.{each}{number}") for each in range(1, 9)]
            self.groupsOf[host] = useDevice(host, DEVICE, *more)
            self.addCleanup(self.groupsOf[host].close)
        for wanted, expected in ((8, 8), (3, 3), (1, 1)):
            self.options = replace(self.options, links=wanted)
            for host in (self.client, self.server):
                for group in self.groupsOf[host].groups():
                    group.close("for the test")
            self.wait(1)
            here, there, _ = self.connect()
            self.until(lambda here=here, there=there: here.mode and there.mode)  # type: ignore[misc]
            self.wait(1)
            for host in (self.client, self.server):
                self.assertEqual(
                    [len(set(each)) for each in zip(*self.links(host), strict=True)], [expected] * 2
                )


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
                self.until(lambda ends=ends: all(a.received and b.received for a, b in ends))  # type: ignore[misc]
                for here, there in ends:
                    self.assertEqual((here.received, there.received), (b"pong", b"ping"))
                    self.assertEqual((here.reason, there.reason), (None, None))

    def cutOff(self, number: int, isCut: bool) -> None:
        """Cut one of the two networks, or mend it: nobody is told."""
        network = ("198.51.100", "203.0.113")[number]
        if isCut:
            self.world.network.partition(f"{network}.1", f"{network}.2")
        else:
            self.world.network.heal()

    def ports(self, host: Host) -> list[int]:
        """The active links of a host, by the place of their port's device among its devices."""
        groups = self.groupsOf[host]
        [group] = groups.groups()
        return sorted(groups.devices.index(link.port.device) for link in group.links if link.isActive)

    def talk(self, ends: list[tuple[Listener, Listener]]) -> None:
        """Say something on each connection, both ways, and hear it."""
        begun = [(len(here.received), len(there.received)) for here, there in ends]
        for here, there in ends:
            here.transport.write(PATTERN)
            there.transport.write(PATTERN[::-1])
        wanted = len(PATTERN)
        self.until(
            lambda: all(
                len(here.received) == one + wanted and len(there.received) == other + wanted
                for (here, there), (one, other) in zip(ends, begun, strict=True)
            ),
            60,
        )
        for (here, there), (one, other) in zip(ends, begun, strict=True):
            self.assertTrue(there.received[other:] == PATTERN and here.received[one:] == PATTERN[::-1])

    def test_portDown(self) -> None:
        """A port that goes down under load loses nothing; when it is up again, its link is there again."""
        for host in (self.client, self.server):
            for at in (0, 1):
                ends = [self.pair() for _ in range(4)]
                device: Any = self.groupsOf[host].devices[at]
                self.world.clock.callLater(1e-3, device.setPortEnabled, 1, False)
                self.talk(ends)
                self.until(
                    lambda at=at: self.ports(self.client) == self.ports(self.server) == [1 - at]  # type: ignore[misc]
                )
                device.setPortEnabled(1, True)
                self.until(lambda: self.ports(self.client) == self.ports(self.server) == [0, 1])
                self.talk(ends)

    def test_keeping(self) -> None:
        """What is posted is kept while there are two links, and only then."""
        self.pair()
        device: Any = self.groupsOf[self.client].devices[0]
        for isEnabled, links in ((False, 1), (True, 2)):
            device.setPortEnabled(1, isEnabled)
            self.wait(1)
            for group in self.both():
                kept = [link.scheduler.queue.unacknowledged is not None for link in group.links]
                self.assertEqual(kept, [links == 2] * links)

    def test_silent(self) -> None:
        """A network that is cut is found by TEST LINK, and tried again until it is mended."""
        ends = [self.pair() for _ in range(4)]
        for at in (0, 1):
            self.cutOff(at, True)
            self.talk(ends)
            for host in (self.client, self.server):
                self.assertEqual(self.ports(host), [1 - at])
            self.wait(20)
            self.cutOff(at, False)
            self.until(lambda: self.ports(self.client) == self.ports(self.server) == [0, 1], 60)
            self.talk(ends)

    def test_busy(self) -> None:
        """A peer that is busy for long answers by no link, and loses none."""
        ends = [self.pair() for _ in range(4)]
        self.server.sleep()
        self.wait(100)
        self.server.wake()
        self.talk(ends)
        self.assertEqual((self.ports(self.client), self.ports(self.server)), ([0, 1], [0, 1]))

    def test_gone(self) -> None:
        """A device that is taken away ends its links only."""
        for at in (1, 0):
            self.setUp()
            ends = [self.pair() for _ in range(4)]
            device: Any = self.groupsOf[self.client].devices[at]
            device.notify(AsyncEvent(AsyncEventKind.DEVICE_FATAL))
            self.talk(ends)
            self.assertEqual((self.ports(self.client), self.ports(self.server)), ([0], [1 - at]))
            more = self.connect()
            self.until(lambda more=more: more[0].mode == more[1].mode == "SMC-R")  # type: ignore[misc]
            self.talk([more[:2]])

    def test_both(self) -> None:
        """When both networks are cut, and stay so, connections end with an error at both ends."""
        here, there = self.pair()
        for at in (0, 1):
            self.cutOff(at, True)
        here.transport.write(b"is somebody there?")
        self.until(lambda: here.reason and there.reason, 10_000)
        self.assertEqual((here.reason, there.reason), (ConnectionLost, ConnectionLost))

    def test_last(self) -> None:
        """When both links have failed, connections end."""
        here, there = self.pair()
        group = self.both()[0]
        for link in list(group.links):
            link.broken("for the test")
        self.until(lambda: here.reason and there.reason, 20)


class LoadTests(TwoLinkTestCase):
    """
    One of the links fails in the middle of transfers.

    @ivar isExhaustive: each link fails at each end at each moment, and not one of the links at one end.
    @ivar repeats: of 251 bytes, in each transfer.
    """

    isExhaustive = False
    repeats = 1000
    slowBecause = "Sixteen combinations transfer megabytes through a simulated network."

    def underLoad(self, steps: int, host: int, at: int, lost: int) -> None:
        """
        Break a link in the middle of transfers in both directions, after so many turns of the world.

        @param lost: turns before, in which all is lost that goes by the link.
        """
        pattern = bytes(range(251)) * self.repeats
        ends = [self.pair() for _ in range(4)]
        for here, there in ends:
            here.transport.write(pattern)
            there.transport.write(pattern[::-1])
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
            lambda: all(len(a.received) >= len(pattern) and len(b.received) >= len(pattern) for a, b in ends),
            60,
        )
        for here, there in ends:
            self.assertTrue(there.received == pattern and here.received == pattern[::-1], "bytes differ")
            here.transport.loseConnection()
            there.transport.loseConnection()
        self.until(lambda: all(a.reason and b.reason for a, b in ends), 20)
        for group in self.both():
            self.assertEqual(group.core.connections, {})

    def test_underLoad(self) -> None:
        """Nothing is lost and nothing comes twice, at whatever moment the link fails."""
        for number, steps in enumerate((0, 1, 5, 20, 60, 150, 300)):
            places = [(host, at) for host in (0, 1) for at in (0, 1)]
            for host, at in places if self.isExhaustive else [places[number % 4]]:
                self.setUp()
                self.underLoad(steps, host, at, lost=0)

    def test_cut(self) -> None:
        """Nothing is lost and nothing comes twice where packets are lost some time before the link fails."""
        for number, (steps, lost) in enumerate(product((3, 30, 100), (1, 10, 200))):
            for at in (0, 1) if self.isExhaustive else (number % 2,):
                self.setUp()
                self.underLoad(steps, steps % 2, at, lost)
