"""
Connections with several modules on simulated hosts with two networks: one with losses, one with an outage.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

from twisted.python.failure import Failure

from txrdma.btl.core.matching import Interface
from txrdma.btl.core.path import DATA, Path
from txrdma.btl.core.roundtrip import LONGEST_TIMEOUT
from txrdma.btl.core.window import GIVE_UP
from txrdma.btl.errors import Unreachable
from txrdma.btl.introductions import decodeInterfaces, encodeInterfaces, Introduction
from txrdma.btl.module import moduleOf, ModulePort
from txrdma.error import WireError
from txrdma.iba.roce import RoCEPacket
from txrdma.iba.types import LID
from txrdma.iba.verbs import QPKind
from txrdma.sim.network import Faults
from txrdma.soft.device import SoftDevice
from txrdma.test.support.btl.hosts import HostsCase, ORDERED, TAG, TagRecorder
from txrdma.testing.smc.hosts import Host

_LOSSY = Faults(loss=0.05, duplication=0.02, jitterSeconds=0.002, late=0.01)
_SIZES = (0, 100, 5000, 30_000, 200_000)


class TwoNetworksCase(HostsCase):
    """
    Two hosts, each with a device in either of two networks.

    @ivar order: indexes of the devices of each host, in the order of the endpoint.
    """

    order: dict[Host, tuple[int, ...]]

    def setUp(self) -> None:
        self.addCleanup(self.closeOthers)  # last, after the modules of these devices have been closed
        super().setUp()
        self.order = {self.hosts[0]: (0, 1), self.hosts[1]: (1, 0)}
        self.others = {host: self.second(host) for host in self.hosts}

    def second(self, host: Host) -> SoftDevice:
        device: SoftDevice = self.world.network.device(host.address.replace("10.0.1.", "10.0.2."))
        return device

    def closeOthers(self) -> None:
        """Close the devices in the other network."""
        for device in self.others.values():
            device.close()

    def devices(self, host: Host) -> list[SoftDevice]:
        """Return the devices of a host's endpoint, in its order."""
        both = (host.device, self.others[host])
        return [both[place] for place in self.order[host]]

    def module(self, host: Host) -> ModulePort:
        return moduleOf(host, *self.devices(host))

    def paths(self, client: TagRecorder) -> list[Path]:
        """Return the paths of the first host's connection, the one in the first network first."""
        found = client.transport._peer.sent.paths
        return [found[place] for place in self.order[self.hosts[0]]]

    def cut(self, network: int) -> None:
        """Drop all packets in one of the networks."""
        self.world.network.partition(f"10.0.{network}.1", f"10.0.{network}.2")

    def join(self, network: int) -> None:
        """Deliver packets again."""
        self.world.network.join(f"10.0.{network}.1", f"10.0.{network}.2")


class PathsTests(TwoNetworksCase):
    """Both paths of a connection are used."""

    def test_both(self) -> None:
        """Long messages use both paths in each direction, not RDMA on one, and arrive unchanged."""
        client, server = self.connected()
        data = Random(1).randbytes(2_000_000)
        self.outcome(client.transport.send(TAG, data))
        self.outcome(server.transport.send(ORDERED, data))
        self.assertEqual((server.tagged, client.tagged), ([(TAG, data)], [(ORDERED, data)]))
        for host in self.hosts:
            _command, first, _other, second = [each.posted for each in self.module(host)._channels]
            self.assertLess(max(first, second), 3 * min(first, second))
        devices = [device for host in self.hosts for device in self.devices(host)]
        self.assertEqual([len(device._queuePairs) for device in devices], [2, 2, 2, 2])

    def test_oneInCommon(self) -> None:
        """Hosts with one common network use one path, whichever address the client has connected to."""
        self.order[self.hosts[1]] = (1,)
        client, server = self.connected()
        self.outcome(client.transport.send(TAG, bytes(200_000)))
        kinds = [each.kind for each in self.others[self.hosts[0]]._queuePairs]
        self.assertEqual((kinds.count(QPKind.UD), kinds.count(QPKind.RC)), (2, 1))
        self.assertEqual(client.transport._peer.ports, (1,))
        server.transport.loseConnection()
        self.wait(lambda: client.lost and server.lost)
        self.assertNothingLeft()


class FailingTests(TwoNetworksCase):
    """A network that fails does not end a connection that has another one."""

    slowBecause = "a lost network is found after retransmission timeouts in real time"

    def exchange(self, seed: int, trouble: int) -> None:
        """Send messages in both directions while one network loses packets and the other one fails."""
        random = Random(seed)
        self.world.network.reseed(seed + 1)
        for host in self.hosts:
            self.world.network.faultsOf[host.address.replace("10.0.1.", f"10.0.{3 - trouble}.")] = _LOSSY
        client, server = self.connected()
        wanted: list[tuple[int, bytes]] = []
        for number in range(24):
            tag = random.choice((TAG, ORDERED))
            wanted.append((tag, number.to_bytes(2, "big") + bytes(random.choice(_SIZES))))
        outcomes = []
        for number, (tag, data) in enumerate(wanted):
            for end in (client, server):
                outcomes.append(end.transport.send(tag, data))
                end.transport.sendMessage(data)
            if number == 12:
                self.pause(random.random() * 0.02)
                self.cut(trouble)
        if random.random() < 0.5:
            self.pause(3.0)
            self.join(trouble)
        client.transport.send(TAG, b"last")
        self.wait(lambda: all(each.called for each in outcomes), 120.0)
        self.wait(lambda: len(client.messages) == len(server.messages) == len(wanted), 120.0)
        for end in (client, server):
            mine = [each for each in end.tagged if each[1] != b"last"]
            self.assertEqual(sorted(mine), sorted(wanted), f"seed {seed}")
            ordered = [each for each in wanted if each[0] == ORDERED]
            self.assertEqual([each for each in mine if each[0] == ORDERED], ordered, f"seed {seed}")
            self.assertEqual([data for data, _immediate in end.messages], [data for _tag, data in wanted])
        for each in outcomes:
            self.successResultOf(each)
        client.transport.loseConnection()
        self.wait(lambda: client.lost and server.lost, 60.0)
        self.assertEqual((client.why(), server.why()), ("ConnectionDone", "ConnectionDone"), f"seed {seed}")
        self.join(trouble)
        self.pause(1.0)  # delayed packets
        self.assertNothingLeft()
        self.assertEqual([len(device._queuePairs) for device in self.others.values()], [0, 0])

    def test_firstCut(self) -> None:
        """Messages arrive once when the first network fails and the other one loses packets."""
        self.exchange(0, 1)

    def test_secondCut(self) -> None:
        """Messages arrive once when the second network fails and the first one loses packets."""
        self.exchange(1, 2)

    def test_comesBack(self) -> None:
        """A network carries data again after a long outage, during which the connection continues."""
        client, server = self.connected()
        self.cut(1)
        sent = [client.transport.send(TAG, bytes(400_000)), server.transport.send(TAG, bytes(400_000))]
        for each in sent:
            self.outcome(each, 10.0)
        cut, other = self.paths(client)
        self.assertEqual((cut.isSilent, other.isSilent), (True, False))
        for _each in range(5):
            self.pause(GIVE_UP / 2)
            self.outcome(client.transport.send(TAG, bytes(400_000)), 1.0)
        self.join(1)
        self.pause(2 * LONGEST_TIMEOUT)
        self.assertFalse(cut.isSilent)
        posted = self.module(self.hosts[0])._channels[2 * cut.port + DATA]
        before, resends = posted.posted, self.module(self.hosts[0]).core.counters.resends
        self.outcome(client.transport.send(TAG, bytes(4_000_000)), 1.0)
        self.outcome(server.transport.send(TAG, bytes(400_000)), 10.0)
        self.assertGreater(posted.posted, before + 10)
        self.assertEqual(self.module(self.hosts[0]).core.counters.resends, resends)
        self.close(client, server)
        self.assertNothingLeft()


class ProbeTests(TwoNetworksCase):
    """Each pair of interfaces is probed before the connection is established."""

    slowBecause = "it simulates ten seconds of retransmissions"

    def failures(self) -> list[Failure]:
        """Open a connection; return its failures at both ends."""
        answers = [opening.answer for opening in self.open(TagRecorder(), TagRecorder())]
        self.wait(lambda: all(answer.called for answer in answers), 60.0)
        found = [self.failureResultOf(answer) for answer in answers]
        self.assertNothingLeft()
        return found

    def test_silent(self) -> None:
        """An error names the interface and the address between which no packet passes."""
        self.cut(2)
        found, other = self.failures()
        for each in (found, other):
            each.trap(Unreachable)
        self.assertIn("no packet passes from 10.0.2.1 (10.0.2.1) to 10.0.2.2: of 64", found.getErrorMessage())

    def test_small(self) -> None:
        """An error names an MTU with which no packets pass, with its interface."""
        qpns = {
            qpn
            for host in self.hosts
            for qpn in self.module(host).ports[self.order[host].index(1)].address.qpns
        }

        def isLong(packet: RoCEPacket) -> bool:
            return packet.bth.destination in qpns and len(packet.payload) > 800

        self.world.network.drop(isLong, 1 << 30)
        found = self.failures()[0]
        found.trap(Unreachable)
        self.assertIn(
            "packets of 1024 bytes, the MTU, do not pass from 10.0.2.1 (10.0.2.1) to 10.0.2.2",
            found.getErrorMessage(),
        )

    def test_noWay(self) -> None:
        """Interfaces without a common network cause an error that names them."""
        six = self.world.network.device("fd00::2")
        self.addCleanup(six.close)
        self.hosts[1].device, self.order[self.hosts[1]] = six, (0,)
        for failure in self.failures():
            self.assertIn("there is no route from ", failure.getErrorMessage())


class PortsTests(HostsCase):
    """Devices with two ports, and ports on InfiniBand."""

    def test_second(self) -> None:
        """A device that occurs twice carries messages by both of its ports."""
        opened: list[SoftDevice] = []
        for host in self.hosts:
            addresses = (f"10.0.{net}.{host.address[-1]}" for net in (3, 4))
            opened.append(self.world.network.device(*addresses))
        self.patch(self, "devices", lambda host: [opened[self.hosts.index(host)]] * 2)
        client, server = self.connected()
        data = Random(1).randbytes(2_000_000)
        self.outcome(client.transport.send(TAG, data))
        self.outcome(server.transport.send(TAG, data))
        self.assertEqual((server.tagged, client.tagged), ([(TAG, data)], [(TAG, data)]))
        for host, device in zip(self.hosts, opened, strict=True):
            module = moduleOf(host, device, device)
            self.assertEqual([port.portNumber for port in module.ports], [1, 2])
            gids = [device.gids(1)[0], device.gids(2)[0]]
            self.assertEqual([port.address.gid for port in module.ports], gids)
            _command, first, _other, second = [each.posted for each in module._channels]
            self.assertLess(max(first, second), 3 * min(first, second))
        self.close(client, server)
        for device in opened:
            device.close()

    def test_lids(self) -> None:
        """Datagrams and long messages are sent to the LIDs of the peer's ports, as InfiniBand needs."""
        for number, host in enumerate(self.hosts):
            attributes = replace(host.device.portAttributes(1), lid=LID(7 + number))
            self.patch(host.device, "portAttributes", lambda _port, found=attributes: found)
        client, server = self.connected()
        self.outcome(client.transport.send(TAG, bytes(500_000)))
        for number, end in enumerate((client, server)):
            wanted = LID(8 - number)
            handles = [each[0] for each in end.transport._peer.context.destinations]
            self.assertEqual([handle.address.dlid for handle in handles], [wanted] * 2)
            (pair,) = self.reliable(number)
            self.assertEqual(pair.query().address.dlid, wanted)
        self.close(client, server)


class InterfacesTests(HostsCase):
    def test_several(self) -> None:
        """A connection between devices of one host uses each of them once."""
        host = self.hosts[0]
        host.device = [host.device, host.device]
        client, _server = self.connected()
        self.outcome(client.transport.send(TAG, bytes(100_000)))
        host.device = host.device[0]

    def test_roundTrip(self) -> None:
        """Interfaces are decoded as they were encoded; other bytes are an error."""
        place = moduleOf(self.hosts[0], self.hosts[0].device).port.address
        introduction = Introduction.of(place, 77, 5, 2)
        reported = [
            (introduction, Interface(place.gid, length, speed)) for length, speed in ((24, 0), (16, 9))
        ]
        content = encodeInterfaces(reported)
        self.assertEqual(decodeInterfaces(content), reported)
        for bad in (b"", content[:-1], content * 5, bytes(len(content))):
            self.assertRaises(WireError, decodeInterfaces, bad)
