"""The MTU of a connection between software devices, whose datagrams may be longer than the MTUs of IBA."""

from __future__ import annotations

from random import Random

from txrdma.btl.core.module import NONCE_LENGTH
from txrdma.btl.core.peer import Peer
from txrdma.btl.probes import MOST_ECHOES, MOST_TRIES, SMALL_LENGTH
from txrdma.btl.wire import CHUNK, decodeSegment, FRAG, HEADER_LENGTH
from txrdma.iba.roce import RoCEPacket
from txrdma.soft.device import SoftDevice
from txrdma.test.support.btl.hosts import HostsCase, TAG, TagRecorder
from txrdma.testing.smc.hosts import Host

_USUAL, _LONGEST = 1024, 1436


class _Case(HostsCase):
    """Two hosts on Ethernet, whose devices accept datagrams of the interface's whole MTU."""

    longest = (_LONGEST, _LONGEST)

    def host(self, address: str) -> Host:
        longest = self.longest[address.endswith("2")]

        def device() -> SoftDevice:
            made: SoftDevice = self.world.network.device(address, longestDatagram=longest)
            return made

        host = Host(self.world, address, device)
        host.openDevice()
        self.addCleanup(self._leave, host)
        return host

    def peer(self, end: TagRecorder) -> Peer:
        return self.lifeline(end).peer


class GrowthTests(_Case):
    def test_grows(self) -> None:
        """When a probe of the interface's MTU has passed, messages use it, even those being sent."""
        client, server = self.connected()
        self.assertEqual(self.peer(client).mtu, _USUAL)
        data = Random(1).randbytes(7000)
        sending = client.transport.send(TAG, data)
        self.wait(lambda: self.peer(client).mtu == self.peer(server).mtu == _LONGEST)
        self.outcome(sending)
        packets: list[RoCEPacket] = []

        def note(packet: RoCEPacket) -> bool:
            packets.append(packet)
            return False

        self.world.network.drop(note)
        self.outcome(client.transport.send(TAG, bytes(_LONGEST - HEADER_LENGTH)))
        self.outcome(client.transport.send(TAG, bytes(_LONGEST - HEADER_LENGTH + 1)))
        kinds = [decodeSegment(packet.payload).kind for packet in packets]
        self.assertEqual((kinds.count(FRAG), kinds.count(CHUNK)), (1, 2))
        self.assertEqual(server.tagged[0], (TAG, data))
        self.close(client, server)

    def test_dropped(self) -> None:
        """A path that drops long packets uses the usual MTU, without delay."""
        dropped: list[int] = []

        def isLong(packet: RoCEPacket) -> bool:
            if (length := len(packet.payload)) > _USUAL:
                dropped.append(length)
            return length > _USUAL

        self.world.network.drop(isLong, 1000)
        begun = self.world.clock.seconds()
        client, server = self.connected()
        self.assertLess(self.world.clock.seconds() - begun, 0.01)
        data = Random(1).randbytes(100_000)
        self.outcome(client.transport.send(TAG, data))
        self.pause(5.0)
        self.assertEqual(dropped, [_LONGEST] * 2 * MOST_TRIES)
        self.assertEqual((self.peer(client).mtu, self.peer(server).mtu), (_USUAL, _USUAL))
        self.assertEqual(server.tagged, [(TAG, data)])
        self.close(client, server)

    def test_oneLoss(self) -> None:
        self.world.network.drop(lambda packet: len(packet.payload) > _USUAL)
        client, server = self.connected()
        self.wait(lambda: self.peer(client).mtu == self.peer(server).mtu == _LONGEST)


class OtherDeviceTests(_Case):
    """A peer whose datagrams have an MTU of IBA."""

    longest = (_LONGEST, 0)

    def test_smaller(self) -> None:
        """The connection has the MTU that both ends accept."""
        client, server = self.connected()
        self.pause(1.0)
        self.assertEqual((self.peer(client).mtu, self.peer(server).mtu), (_USUAL, _USUAL))
        self.close(client, server)


class EchoTests(HostsCase):
    """A peer that sends more probes than the rules require."""

    def test_most(self) -> None:
        """Few of them are echoed: else one that does not read would fill memory by echoes."""
        client, server = self.connected()
        lifeline, validation = self.lifeline(client), self.lifeline(server)._validation
        assert validation is not None
        echoes: list[bytes] = []
        self.patch(validation, "_echo", echoes.append)
        before = validation._echoes
        for number in range(50):
            lifeline.module.core.probe(lifeline.peer, SMALL_LENGTH, bytes([number]) * NONCE_LENGTH, 0)
        lifeline.module.turnLater()
        self.outcome(client.transport.send(TAG, b"still here"))
        self.assertEqual(len(echoes), MOST_ECHOES - before)
