"""
Link groups with several links: how links are added, and failover of connections when one fails.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any
from unittest.mock import Mock, patch

from twisted.internet.error import ConnectionDone, ConnectionLost

from txrdma.iba.verbs import AsyncEventKind
from txrdma.interfaces import AsyncEvent
from txrdma.smc.flow.flow import Flow
from txrdma.smc.group.attachment import DevicePort
from txrdma.smc.group.failover import LinkFailover
from txrdma.smc.group.group import LinkGroup
from txrdma.smc.group.groups import LinkGroups, useDevice
from txrdma.smc.stream.stream import Stream
from txrdma.smc.wire.llc import AddLink, RequestAddLink
from txrdma.test.support.smc.races import Listener, RaceTestCase
from txrdma.testing.smc.hosts import Host
from txrdma.testing.smc.scenario import DEVICE

PATTERN = bytes(range(251)) * 1000


class TwoLinkTestCase(RaceTestCase):
    """Two hosts with two ports each, each port on its own device."""

    def groups(self, host: Host) -> LinkGroups:
        device = self.world.network.device("203.0.113." + host.address.rpartition(".")[2])
        groups = useDevice(host, DEVICE, host.openDevice(), device)
        groups.ringSize = lambda: 16384  # type: ignore[method-assign]  # the default is larger
        self.groupsOf[host] = groups
        return groups

    def both(self) -> list[LinkGroup]:
        """Return the link groups of the client, then of the server."""
        return [group for host in (self.client, self.server) for group in self.groupsOf[host].groups()]

    def pair(self, *ends: Any, **keys: Any) -> tuple[Listener, Listener]:
        """Establish a connection, and wait until its link group has two active links."""
        here, there = super().pair(*ends, **keys)
        self.until(lambda: all(sum(link.isActive for link in group.links) == 2 for group in self.both()))
        return here, there

    def ports(self, host: Host) -> list[int]:
        """Return the device indexes of a host's active links."""
        groups = self.groupsOf[host]
        [group] = groups.groups()
        return sorted(groups.devices.index(link.port.device) for link in group.links if link.isActive)


class SecondLinkTests(TwoLinkTestCase):
    """The second link of a link group (ADD LINK), and the connections on it."""

    def test_serverAddsSecondLinkWithSameNumberAtBothEnds(self) -> None:
        self.pair()
        for group in self.both():
            self.assertEqual([link.life.number for link in group.links], [1, 2])
            self.assertEqual(len({link.port for link in group.links}), 2)

    def test_connectionsAndTheirBuffersUseBothLinks(self) -> None:
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

    def test_clientWithOnePortHasOneLinkThatRetainsNothing(self) -> None:
        self.groupsOf[self.client].devices.pop().close()
        self.groupsOf[self.client]._portsChanged()
        here, there = RaceTestCase.pair(self)
        self.wait(1)
        here.transport.write(b"hello")
        self.until(lambda: there.received == b"hello")
        for group in self.both():
            [link] = group.links
            self.assertIsNone(link.scheduler.queue.unacknowledged)

    def test_rejectedOffersLeaveNothing(self) -> None:
        """A client may request a second link and reject the offered one, any number of times."""
        usual = LinkFailover._portFor

        def portFor(failover: LinkFailover, peerEnd: AddLink | None) -> DevicePort | None:
            return None if peerEnd is not None else usual(failover, peerEnd)

        self.patch(LinkFailover, "_portFor", portFor)
        here, there = RaceTestCase.pair(self)
        asking, offering = self.both()
        devices: list[Any] = self.groupsOf[self.server].devices
        counts = []
        for _ in range(20):
            core: Any = asking.core._core
            own = core.links[0].local
            v1, v2 = AddLink(mac=own.mac, gid=own.gid), RequestAddLink(gidCount=1, gid=own.gid)
            core.sendRequest(v2 if core.version == 2 else v1)
            asking.check()
            self.until(lambda: len(offering.links) == 2)
            self.until(lambda: len(offering.links) == 1)
            tables = [(each.keys, each._queuePairs, each._completionQueues) for each in devices]
            counts.append([tuple(map(len, each)) for each in tables])
        self.assertEqual(counts[1:], counts[:1] * 19)
        here.transport.write(b"still there")
        self.until(lambda: there.received == b"still there")


class FailureTests(TwoLinkTestCase):
    """Exceptions while connections are moved."""

    def test_move(self) -> None:
        """A connection that cannot be moved ends at both ends; all others are moved."""
        for owner in (Stream, Flow):
            ends = [self.pair() for _ in range(4)]
            [group] = self.groupsOf[self.client].groups()
            usual, raised = owner.move, list[Any]()

            def move(each: Any, *arguments: Any, usual: Any = usual, raised: list[Any] = raised) -> None:
                if not raised:
                    raised.append(each)
                    raise ZeroDivisionError("a test's")
                usual(each, *arguments)

            elements = {here: here.transport.stream._element for here, _there in ends}
            with patch.object(owner, "move", move):
                group.links[0].broken("for the test")
            self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)
            lost = [
                (here, there)
                for here, there in ends
                if here.transport.stream in raised or here.transport.stream.flow in raised
            ]
            self.assertEqual(len(lost), 1)
            element, peer = elements[lost[0][0]], lost[0][1]
            peer.transport.write(b"before it knows")  # into the buffer, which no other connection may use
            self.until(lambda: all(each.reason for each in lost[0]))  # noqa: B023
            self.assertNotIn(element.index, element.buffer._free)
            for here, there in ends:
                if not here.reason:
                    here.transport.write(b"still here")
                    self.until(lambda there=there: there.received == b"still here")  # type: ignore[misc]  # a lambda
                    here.transport.loseConnection()
                    there.transport.loseConnection()
            self.until(lambda: all(here.reason and there.reason for here, there in ends))  # noqa: B023
            self.until(lambda: not any(group.streams() for group in self.both()))

    def test_ports(self) -> None:
        """A group that cannot use changed ports ends alone."""
        here, there = self.pair()
        groups = self.groupsOf[self.client]
        other = Mock()
        self.patch(groups, "groups", lambda usual=groups.groups: [*usual(), other])
        self.patch(LinkFailover, "portsChanged", Mock(side_effect=ZeroDivisionError("a test's")))
        groups._portsChanged()
        other.portsChanged.assert_called_once()
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)
        self.until(lambda: here.reason and there.reason)

    def test_portsAndEnd(self) -> None:
        """A group that cannot even end does not prevent others from using changed ports."""
        self.pair()
        groups = self.groupsOf[self.client]
        other = Mock()
        self.patch(groups, "groups", lambda usual=groups.groups: [*usual(), other])
        with patch.object(LinkGroup, "_turnCore", Mock(side_effect=ZeroDivisionError("a test's"))):
            groups._portsChanged()
        other.portsChanged.assert_called_once()
        self.assertTrue(self.flushLoggedErrors(ZeroDivisionError))


class AsymmetricTests(TwoLinkTestCase):
    """Links between ends with different numbers of ports, and with more than two."""

    def links(self, host: Host) -> list[tuple[str, str]]:
        """Return the local and the remote GID of each active link of a host."""
        [group] = self.groupsOf[host].groups()
        return [
            (str(life.local.gid.ip), str(life.remote.gid.ip))
            for life in (link.life for link in group.links if link.isActive)
            if life.remote is not None
        ]

    def test_linksSharePortUntilSecondPortIsUp(self) -> None:
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

    def usePorts(self, count: int) -> None:
        """Give each host this number of ports, each on its own device."""
        for host in (self.client, self.server):
            number = host.address.rpartition(".")[2]
            more = [self.world.network.device(f"192.0.2.{each}{number}") for each in range(1, count + 1)]
            self.groupsOf[host] = useDevice(host, DEVICE, *more)
            self.addCleanup(self.groupsOf[host].close)

    def test_linksOptionAllowsLinksWithTheirOwnPorts(self) -> None:
        self.usePorts(8)
        for wanted, expected in ((8, 8), (3, 3), (1, 1)):
            self.options = replace(self.options, links=wanted)
            for host in (self.client, self.server):
                for group in self.groupsOf[host].groups():
                    group.close("for the test")
            self.wait(1)
            RaceTestCase.pair(self)
            self.wait(1)
            for host in (self.client, self.server):
                self.assertEqual(
                    [len(set(each)) for each in zip(*self.links(host), strict=True)], [expected] * 2
                )

    def test_connectionClosedBeforeTwoLinksFailAtOnceEnds(self) -> None:
        """C{connectionLost} follows although the peer, which knows half-closing, leaves its side open."""
        self.usePorts(3)
        self.options = replace(self.options, links=3)
        here, there = RaceTestCase.pair(self)
        self.wait(1)
        [group] = self.groupsOf[self.client].groups()
        self.assertEqual(len(group.links), 3)
        here.transport.write(b"the end")
        here.transport.loseConnection()
        stream = here.transport.stream
        stream.link.scheduler.finish()
        for _ in range(2):  # as with a device that has two ports
            stream.link.broken("for the test")
        self.wait(10)
        self.assertEqual((there.received, there.hasEnded), (b"the end", True))
        self.assertIs(here.reason, ConnectionDone)


class FailoverTests(TwoLinkTestCase):
    """Connections continue on the other link when a link, a port, a network or a device fails."""

    def breakOne(self, ends: list[tuple[Listener, Listener]], at: int, host: int) -> None:
        """Break a link at one end, and check that both ends have moved all connections to the other link."""
        group = self.both()[host]
        group.links[at].broken("for the test")
        self.wait(0.2)
        for group in self.both():
            self.assertEqual(len(group.links), 1)
            self.assertEqual(len(group.links[0].members), len(ends))

    def test_idleConnectionsContinueWhicheverLinkFails(self) -> None:
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

    def test_messagesThatHaveArrivedOnDeletedLinkAreProcessed(self) -> None:
        """The peer may know that they have arrived, and then does not repeat them on the other link."""
        here, there = self.pair()
        [group] = self.groupsOf[self.server].groups()
        link = there.transport.stream.link
        link._reader.stop()  # it is late
        here.transport.write(b"before")
        self.wait(0.1)
        self.assertEqual(there.received, b"")
        group.linkFailed(link, "for the test")
        here.transport.write(b" and after")
        self.until(lambda: there.received == b"before and after")
        self.assertEqual((here.reason, there.reason), (None, None))

    def cutOff(self, number: int, isCut: bool) -> None:
        """Cut or restore one of the two networks, without notification of the hosts."""
        network = ("198.51.100", "203.0.113")[number]
        if isCut:
            self.world.network.partition(f"{network}.1", f"{network}.2")
        else:
            self.world.network.heal()

    def talk(self, ends: list[tuple[Listener, Listener]]) -> None:
        """Transfer data in both directions on each connection, and check it."""
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

    def test_portDownUnderLoadLosesNothingAndIsRestored(self) -> None:
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

    def test_messagesAreRetainedOnlyWhileGroupHasTwoLinks(self) -> None:
        self.pair()
        device: Any = self.groupsOf[self.client].devices[0]
        for isEnabled, links in ((False, 1), (True, 2)):
            device.setPortEnabled(1, isEnabled)
            self.wait(1)
            for group in self.both():
                retained = [link.scheduler.queue.unacknowledged is not None for link in group.links]
                self.assertEqual(retained, [links == 2] * links)

    def test_endedLinkLeavesNoMemoryRegistered(self) -> None:
        for isStaged in (False, True):
            self.setUp()
            devices: list[Any] = [each for groups in self.groupsOf.values() for each in groups.devices]
            if isStaged:
                self.stage()
            self.pair()
            device: Any = self.groupsOf[self.client].devices[1]
            counts = []
            for _ in range(4):
                device.setPortEnabled(1, False)
                self.until(lambda: self.ports(self.client) == self.ports(self.server) == [0])
                device.setPortEnabled(1, True)
                self.until(lambda: self.ports(self.client) == self.ports(self.server) == [0, 1])
                counts.append([len(each.keys) for each in devices])
            for group in self.both():
                self.assertEqual([link.scheduler.queue.isStaged for link in group.links], [isStaged] * 2)
            self.assertEqual(counts[1:], counts[:1] * 3)
            # Of four lost links, the keys of the last two are retained.
            buffers = [each for group in self.both() for each in group.links[0].life.remoteKeys.values()]
            self.assertEqual({len(each) for each in buffers}, {4})

    def stage(self) -> None:
        """Let the devices send from registered memory only, as adapters do."""
        for groups in self.groupsOf.values():
            for device in groups.devices:
                device.limits = replace(device.limits, maxInline=64)
            groups._portsChanged()

    def test_idleLinksStay(self) -> None:
        """Links may exchange any number of TEST LINKs, although no connection sends anything."""
        for isStaged in (False, True):
            self.setUp()
            if isStaged:
                self.stage()
            here, there = self.pair()
            before = [[link.life for link in group.links] for group in self.both()]
            for group in self.both():
                self.assertEqual([link.scheduler.queue.isStaged for link in group.links], [isStaged] * 2)
                group.core.keepAlive(0.1)
            self.wait(30)
            for group, lives in zip(self.both(), before, strict=True):
                self.assertEqual([link.life for link in group.links], lives)
                self.assertGreater(min(link.scheduler.queue.sent for link in group.links), 200)
            here.transport.write(b"still there")
            self.until(lambda there=there: there.received == b"still there")  # type: ignore[misc]

    def test_cutNetworkIsDetectedByTestLinkAndRestored(self) -> None:
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

    def test_peerThatIsBusyForLongLosesNoLink(self) -> None:
        ends = [self.pair() for _ in range(4)]
        self.server.sleep()
        self.wait(100)
        self.server.wake()
        self.talk(ends)
        self.assertEqual((self.ports(self.client), self.ports(self.server)), ([0, 1], [0, 1]))

    def test_lossOfDeviceEndsOnlyItsLinks(self) -> None:
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

    def test_connectionsEndWithErrorIfBothNetworksRemainCut(self) -> None:
        here, there = self.pair()
        for at in (0, 1):
            self.cutOff(at, True)
        here.transport.write(b"is somebody there?")
        self.until(lambda: here.reason and there.reason, 10_000)
        self.assertEqual((here.reason, there.reason), (ConnectionLost, ConnectionLost))


class LoadTests(TwoLinkTestCase):
    """
    A link fails during transfers.

    @ivar isExhaustive: play all combinations of link and end for each number of iterations, instead of one.
    @ivar repeats: length of each transfer, in units of 251 bytes.
    """

    isExhaustive = False
    repeats = 1000
    slowBecause = "Sixteen combinations transfer megabytes through a simulated network."

    def underLoad(self, steps: int, host: int, at: int, lost: int) -> None:
        """
        Break a link during transfers in both directions, after this number of iterations of the world.

        @param lost: number of iterations before the failure in which all packets on the link are lost.
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

    def test_failureAtAnyTimeLosesAndDuplicatesNothing(self) -> None:
        for number, steps in enumerate((0, 1, 5, 20, 60, 150, 300)):
            places = [(host, at) for host in (0, 1) for at in (0, 1)]
            for host, at in places if self.isExhaustive else [places[number % 4]]:
                self.setUp()
                self.underLoad(steps, host, at, lost=0)

    def test_packetLossBeforeFailureLosesAndDuplicatesNothing(self) -> None:
        for number, (steps, lost) in enumerate(product((3, 30, 100), (1, 10, 200))):
            for at in (0, 1) if self.isExhaustive else (number % 2,):
                self.setUp()
                self.underLoad(steps, steps % 2, at, lost)
