"""Datagram services: found by their ports, used, lost and refused."""

from __future__ import annotations

from array import array
from typing import Any
from unittest.mock import Mock

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.endpoints import clientFromString, serverFromString
from twisted.internet.error import CannotListenError

from txrdma.cm.connections.adapter import Adapter, adapterOf, REFRESH_SECONDS
from txrdma.cm.connections.datagramqueues import HANDLES, QKEY, RECEIVES, SENDS
from txrdma.cm.connections.datagrams import (
    DatagramClientEndpoint,
    DatagramGroupEndpoint,
    DatagramPeer,
    DatagramProtocol,
    DatagramServerEndpoint,
)
from txrdma.cm.errors import PeerSilent, Rejected
from txrdma.cm.layouts.ipcm import IPAddresses
from txrdma.cm.layouts.messages import RejectReason, SIDRREP, SIDRREQ, SIDRStatus
from txrdma.cm.manager import ConnectionManager
from txrdma.cm.terms import Terms
from txrdma.error import DeviceUnavailable, InvalidRequest, Refused, ResourceExhausted
from txrdma.iba.path import IBPath
from txrdma.iba.types import GID, QPN
from txrdma.iba.verbs import QPKind
from txrdma.messages.protocol import MessageFactory
from txrdma.soft.core.queuepair import SoftQueuePair
from txrdma.soft.device import SoftAddressHandle, SoftProtectionDomain
from txrdma.test.support.cm.messaging import MessagingCase


class DatagramRecorder(DatagramProtocol):
    """Records datagrams and their senders."""

    def __init__(self, answer: bytes = b"") -> None:
        self.answer = answer
        self.received: list[tuple[bytes, DatagramPeer]] = []
        self.calls: list[str] = []

    def startProtocol(self) -> None:
        self.calls.append("start")

    def stopProtocol(self) -> None:
        self.calls.append("stop")

    def datagramReceived(self, data: bytes, peer: DatagramPeer) -> None:
        self.received.append((data, peer))


class Failing(DatagramRecorder):
    def datagramReceived(self, data: bytes, peer: DatagramPeer) -> None:
        raise RuntimeError("a test's")


class Untransported(DatagramRecorder):
    """A protocol whose transport cannot be set."""

    transport = property(lambda _: None)


class DatagramTests(MessagingCase):
    def setUp(self) -> None:
        super().setUp()
        self.service = DatagramRecorder(b"welcome")

    def listening(self, port: int = 7471) -> Any:
        """Listen at the second host."""
        return self.listenAt(MessageFactory(lambda: self.service), DatagramServerEndpoint, port=port)

    def asking(self, port: int = 7471, **more: Any) -> Deferred[Any]:
        return self.connectTo(MessageFactory(DatagramRecorder), DatagramClientEndpoint, port=port, **more)

    def finish(self, client: Any) -> None:
        """End a client and the service, and assert that everything is released."""
        client.transport.loseConnection()
        self.assertNothingLeft()

    def test_datagramsAndAnswers(self) -> None:
        port = self.listening()
        clients = [self.result(self.asking()) for _ in range(2)]
        peer = clients[0].transport.peer
        self.assertEqual((peer.gid.ip, peer.qkey), ("10.0.1.2", QKEY))
        self.assertEqual(peer.privateData, b"welcome")
        self.assertEqual(port.getHost().serviceID, 0x01111D2F)
        for number, client in enumerate(clients):
            client.transport.write(b"from %d" % number)
            client.transport.write(b"")
        self.wait(lambda: len(self.service.received) == 4)
        for data, sender in self.service.received:
            self.service.transport.write(data[::-1], sender)
        for number, client in enumerate(clients):
            self.wait(lambda c=client: len(c.received) == 2)  # type: ignore[misc]  # a lambda
            self.assertEqual([data for data, _ in client.received], [b"%d morf" % number, b""])
            self.assertEqual({sender for _, sender in client.received}, {peer})
            client.transport.loseConnection()
            client.transport.loseConnection()
            self.assertEqual(client.calls, ["start", "stop"])
        port.stopListening()
        port.stopListening()
        self.assertEqual(self.service.calls, ["start", "stop"])
        clients[0].transport.write(b"too late")
        self.assertNothingLeft()

    def test_errorInClosing(self) -> None:
        """A transport whose closing raises an exception releases the rest, and stops its protocol."""
        for owner, name in ((SoftQueuePair, "close"), (SoftAddressHandle, "close"), (Adapter, "detach")):
            usual, errors = getattr(owner, name), list[Exception]()

            def replacement(*arguments: Any, usual: Any = usual, errors: list[Exception] = errors) -> None:
                usual(*arguments)
                if errors:
                    raise errors.pop()

            self.patch(owner, name, replacement)
            self.service = DatagramRecorder()
            self.listening()
            client = self.result(self.asking())
            client.transport.write(b"hello")
            errors.append(ZeroDivisionError("simulated"))
            self.finish(client)
            self.assertEqual((client.calls, self.service.calls), (["start", "stop"],) * 2, owner)
            self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1, owner)

    def test_errorInAnswer(self) -> None:
        """A client fails if an exception prevents that its service's answer is processed."""
        self.listening()
        self.patch(ConnectionManager, "_resolved", Mock(side_effect=ZeroDivisionError("simulated")))
        self.failure(self.asking(), DeviceUnavailable)
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)
        self.assertNothingLeft()

    def test_unsuitableProtocol(self) -> None:
        """A client fails, without a queue pair that stays, if its protocol accepts no transport."""
        self.listening()
        factory = MessageFactory(Untransported)
        self.failure(self.connectTo(factory, DatagramClientEndpoint, port=7471), AttributeError)
        self.assertNothingLeft()

    def test_longestDatagramArrives(self) -> None:
        self.listening()
        client = self.result(self.asking())
        longest = client.transport.longest
        self.assertGreaterEqual(longest, 1024)
        client.transport.write(bytes(longest))
        self.wait(lambda: self.service.received)
        self.assertEqual(self.service.received[0][0], bytes(longest))
        self.assertRaises(InvalidRequest, client.transport.write, bytes(longest + 1))
        self.assertRaises(InvalidRequest, self.service.transport.write, b"to nobody")
        self.finish(client)

    def test_questionNamesBothAddresses(self) -> None:
        received: list[bytes] = []
        adapter = adapterOf(self.clock, self.devices[1])
        release = adapter.hold()

        def answered(request: SIDRREQ, path: IBPath) -> SIDRREP:
            received.append(request.privateData)
            return SIDRREP(status=SIDRStatus.REJECTED)

        adapter.localManager.serve(0x01111D2F, answered)
        self.assertEqual(self.failure(self.asking(privateData=b"hi"), Refused).status, SIDRStatus.REJECTED)
        release()
        output = IPAddresses.fromPrivateData(received[0])
        self.assertEqual((output.source, output.destination), ("10.0.1.1", "10.0.1.2"))
        self.assertEqual(received[0][36:].rstrip(b"\0"), b"hi")

    def test_silentHostTimesOut(self) -> None:
        for asked, most in ((self.asking(), 300.0), (self.asking(timeout=2.0), 3.0)):
            self.wait(lambda asked=asked: asked.called, most)  # type: ignore[misc]  # a Deferred
            self.failureResultOf(asked, PeerSilent)
        asked = self.asking()
        asked.cancel()
        self.failureResultOf(asked, CancelledError)
        self.assertNothingLeft()

    def test_strings(self) -> None:
        """C{sidr:} strings have the keys of C{rdma:} strings that datagrams need."""
        client: Any = clientFromString(None, r"sidr:127.0.0.3:7471:bindAddress=127.0.0.2:timeout=2s")
        self.assertIsInstance(client, DatagramClientEndpoint)
        self.assertEqual((client._serviceID, client._device), (0x01111D2F, "soft:127.0.0.2"))
        self.assertEqual((client._host, client._timeout, client._privateData), ("127.0.0.3", 2.0, b""))
        client = clientFromString(None, "sidr:host:7471:privateData=hello")
        self.assertEqual((client._device, client._privateData), (None, b"hello"))
        for text in (
            "sidr:127.0.0.3:7471",
            "sidr:7471:interface=127.0.0.3",
            r"sidr:7471:device=soft\:127.0.0.3",
        ):
            server: Any = serverFromString(None, text)
            self.assertIsInstance(server, DatagramServerEndpoint)
            self.assertEqual((server._port, server._device), (7471, "soft:127.0.0.3"))
        self.assertRaises(ValueError, serverFromString, None, "sidr:127.0.0.3:7471:receives=3")
        self.assertRaises(ValueError, clientFromString, None, "sidr:127.0.0.3:0")

    def test_factoryWithoutProtocol(self) -> None:
        """A factory that returns None makes C{listen} and C{connect} fail."""
        nothing = MessageFactory(lambda: None)
        server = DatagramServerEndpoint(self.clock, 7471, self.devices[1])
        self.failureResultOf(server.listen(nothing), InvalidRequest)
        self.listening()
        self.failure(self.connectTo(nothing, DatagramClientEndpoint), InvalidRequest)
        self.assertNothingLeft()

    def test_REQToDatagramService(self) -> None:
        """A REQ to a datagram service is rejected, since its service ID has no connections."""
        port = self.listening()
        connecting = self.connectBy(self.path(), serviceID=port.getHost().serviceID)
        error = self.failure(connecting, Rejected)
        self.assertEqual(error.status, RejectReason.INVALID_SERVICE_ID)
        self.assertNothingLeft()

    def test_portServesOneService(self) -> None:
        self.listening()
        before = len(self.devices[1]._queuePairs)
        endpoint = DatagramServerEndpoint(self.clock, 7471, self.devices[1])
        failure = self.failureResultOf(endpoint.listen(MessageFactory(DatagramRecorder)), CannotListenError)
        self.assertIsInstance(failure.value.__cause__, InvalidRequest)
        self.assertRegex(str(failure.value), ":7471: .*choose another")
        self.failureResultOf(
            DatagramServerEndpoint(self.clock, 7472, self.devices[1]).listen(
                MessageFactory(lambda: DatagramRecorder(bytes(137)))
            ),
            InvalidRequest,
        )
        self.assertEqual(len(self.devices[1]._queuePairs), before)
        self.finish(self.result(self.asking()))

    def test_tooLongPrivateDataIsRefused(self) -> None:
        self.assertRaises(InvalidRequest, self.asking, privateData=bytes(181))

    def test_arrays(self) -> None:
        """An array is sent as its bytes; an object without bytes is refused, and uses no space."""
        self.listening()
        client = self.result(self.asking())
        for _ in range(2 * SENDS):
            self.assertRaises(InvalidRequest, client.transport.write, [1.0])
        client.transport.write(array("d", [1.0, 2.0]))
        self.wait(lambda: self.service.received)
        self.assertEqual(self.service.received[0][0], array("d", [1.0, 2.0]).tobytes())
        self.finish(client)

    def test_excessIsDroppedAndLaterArrives(self) -> None:
        self.listening()
        client = self.result(self.asking())
        for number in range(10 * RECEIVES):
            client.transport.write(b"%d" % number)
        self.wait(lambda: len(client.transport._queuePairs[0]._free) == SENDS)
        self.pause(0.1)
        arrived = len(self.service.received)
        self.assertGreater(arrived, 0)
        self.assertLessEqual(arrived + client.transport.dropped, 10 * RECEIVES)
        client.transport.write(b"last")
        self.wait(lambda: self.service.received[-1][0] == b"last")
        self.finish(client)

    def test_orderOfOthersMessages(self) -> None:
        """A protocol that sends many datagrams in C{messageReceived} does not reorder others' messages."""
        self.listening()
        terms = Terms(receives=128, usesCredits=False)
        self.serve(terms=terms)
        receiver = DatagramPeer(GID.fromIP("10.0.1.1"), QPN(0x5555))

        def flood(data: bytes, immediate: int | None) -> None:
            for _ in range(SENDS + 1):  # the last one polls the completion queue
                self.service.transport.write(b"", receiver)

        clients = []
        for number in range(2):
            clients.append(self.result(self.ask(terms)))
            self.wait(lambda n=number: len(self.served) > n and self.served[n].isMade)  # type: ignore[misc]
        first, second = self.served
        self.patch(first, "messageReceived", flood)
        reader = first.transport._shared.reader
        self.assertIs(second.transport._shared.reader, reader)
        reader.stop()
        clients[0].transport.sendMessage(b"")
        self.pause(0.01)
        sent = [b"%d" % number for number in range(100)]  # more than one poll takes
        for each in sent:
            clients[1].transport.sendMessage(each)
        self.pause(0.1)
        reader.start()
        self.wait(lambda: len(second.messages) == len(sent))
        self.assertEqual([data for data, _ in second.messages], sent)
        for client, server in zip(clients, self.served, strict=True):
            self.closed(client, server)
        self.assertNothingLeft()

    def test_failingProtocolIsStoppedAlone(self) -> None:
        self.service = Failing()
        self.listening()
        client = self.result(self.asking())
        client.transport.write(b"x")
        self.wait(lambda: self.service.calls == ["start", "stop"])
        self.assertEqual(len(self.flushLoggedErrors(RuntimeError)), 1)
        self.finish(client)

    def test_manyPeers(self) -> None:
        """A service that has answered many hosts retains the address handles of the latest ones."""
        self.listening()
        transport: Any = self.service.transport
        (queuePair,) = transport._queuePairs
        gids = [GID.fromIP(f"10.1.{number >> 8}.{number & 255}") for number in range(HANDLES + 2)]
        oldest = queuePair._handleTo(gids[0])
        for gid in (*gids[:-1], gids[1], gids[-1]):
            self.wait(lambda: queuePair._free)
            transport.write(b"answer", DatagramPeer(gid, QPN(7)))
        self.assertEqual(list(queuePair._handles), [*gids[3:-1], gids[1], gids[-1]])
        self.assertIsNot(queuePair._handleTo(gids[0]), oldest)
        self.assertEqual(len(queuePair._handles), HANDLES)
        self.assertNothingLeft()

    def test_serviceThatCloses(self) -> None:
        """A service whose protocol closes its transport is not found; its port can be used again."""
        other = self.listening(7472)

        class Closing(DatagramRecorder):
            def startProtocol(self) -> None:
                self.transport.loseConnection()

        for kind in (DatagramRecorder, Closing):
            self.service = kind()
            port = self.listening()
            self.service.transport.loseConnection()
            error = self.failure(self.asking(), Refused)
            self.assertEqual(error.status, SIDRStatus.SERVICE_ID_NOT_SUPPORTED)
            self.service = DatagramRecorder()
            again = self.listening()
            port.stopListening()  # does not affect its successor
            self.result(self.asking()).transport.loseConnection()
            again.stopListening()
        other.stopListening()
        self.assertNothingLeft()

    def test_deviceWithKernelManager(self) -> None:
        """A service on a device with the kernel's manager is refused, and releases everything."""
        self.patch(Adapter, "localManager", property(Mock(side_effect=InvalidRequest("a test's"))))
        service = DatagramServerEndpoint(self.clock, 7471, self.devices[1])
        self.failureResultOf(service.listen(MessageFactory(DatagramRecorder)), CannotListenError)
        self.assertNothingLeft()


class SeveralPortTests(MessagingCase):
    """A datagram service at all ports of a device."""

    addresses = (("10.0.1.1", "10.0.2.1"), ("10.0.1.2", "10.0.2.2"))

    def test_eachPort(self) -> None:
        """Clients of each address are answered by the queue pair of its port."""
        service = DatagramRecorder()
        self.listenAt(MessageFactory(lambda: service), DatagramServerEndpoint)
        peers: list[Any] = []
        for address in self.addresses[1]:
            client = self.result(
                self.connectTo(MessageFactory(DatagramRecorder), DatagramClientEndpoint, host=address)
            )
            peers.append(client.transport.peer)
            client.transport.write(b"to " + address.encode())
            self.wait(lambda: service.received)
            data, sender = service.received.pop()
            self.assertEqual(data.decode(), f"to {address}")
            service.transport.write(b"answer", sender)
            self.wait(lambda c=client: c.received)  # type: ignore[misc]  # a lambda
            self.assertEqual(client.received, [(b"answer", client.transport.peer)])
            client.transport.loseConnection()
        self.assertEqual([peer.gid.ip for peer in peers], list(self.addresses[1]))
        self.assertNotEqual(peers[0].qpn, peers[1].qpn)
        self.assertNothingLeft()

    def test_route(self) -> None:
        """A service sends to a queue pair that has sent nothing from the port of the route to it."""
        service, receiver = DatagramRecorder(), DatagramRecorder()
        port = self.listenAt(MessageFactory(lambda: receiver), DatagramServerEndpoint)
        self.devices.reverse()
        self.listenAt(MessageFactory(lambda: service), DatagramServerEndpoint)
        for number, address in enumerate(self.addresses[1]):
            gid = GID.fromIP(address)
            qpn = receiver.transport.qpnAt(gid)
            service.transport.write(b"hello", DatagramPeer(gid, qpn))
            self.wait(lambda: receiver.received)
            _data, sender = receiver.received.pop()
            self.assertEqual((sender.gid.ip, sender.localPort), (self.addresses[0][number], number + 1))
        port.stopListening()
        self.assertNothingLeft()

    def test_failsAlone(self) -> None:
        """A service for which the device has too few resources at its last port leaves nothing open."""
        made: list[Any] = []
        create = SoftProtectionDomain.createQueuePair

        def createQueuePair(domain: Any, kind: QPKind, *args: Any) -> Any:
            if kind is QPKind.UD:
                if made:
                    raise ResourceExhausted("a test's")
                made.append(None)
            return create(domain, kind, *args)

        self.patch(SoftProtectionDomain, "createQueuePair", createQueuePair)
        endpoint = DatagramServerEndpoint(self.clock, 7471, self.devices[1])
        self.failureResultOf(endpoint.listen(MessageFactory(DatagramRecorder)), ResourceExhausted)
        self.assertNothingLeft()

    def test_addressesLater(self) -> None:
        """A service that was started while its ports had no addresses is reached when they have them."""
        service = DatagramRecorder()
        for port in self.devices[1].ports:
            self.patch(port, "_interfaces", Mock(interfaceOf=lambda address: None))
        self.listenAt(MessageFactory(lambda: service), DatagramServerEndpoint)
        for port in self.devices[1].ports:
            port._interfaces = None
        self.pause(REFRESH_SECONDS)
        for address in self.addresses[1]:
            client = self.result(
                self.connectTo(MessageFactory(DatagramRecorder), DatagramClientEndpoint, host=address)
            )
            client.transport.write(address.encode())
            self.wait(lambda: service.received)
            self.assertEqual(service.received.pop()[0], address.encode())
            client.transport.loseConnection()
        self.successResultOf(service.transport.joinGroup("239.1.2.3"))
        self.assertNothingLeft()
        self.failureResultOf(service.transport.joinGroup("239.1.2.3"), InvalidRequest)

    def test_group(self) -> None:
        """A service joins a group at one port, and sends to the group from there."""
        services = [DatagramRecorder(), DatagramRecorder()]
        for service in services:
            self.listenAt(MessageFactory(iter([service]).__next__), DatagramServerEndpoint)
            self.devices.reverse()
        group = [self.successResultOf(service.transport.joinGroup("239.1.2.3")) for service in services][0]
        services[0].transport.write(b"to all", group)
        self.pause(0.1)
        for service in services:
            ((data, sender),) = service.received
            self.assertEqual((data, sender.gid.ip, sender.localPort), (b"to all", "10.0.1.2", 1))
        self.successResultOf(services[1].transport.leaveGroup("239.1.2.3"))
        services[0].transport.write(b"to oneself", group)
        self.pause(0.1)
        self.assertEqual([len(service.received) for service in services], [2, 1])
        self.assertNothingLeft()


class GroupTests(MessagingCase):
    """
    IPv4 multicast groups.

    @cvar wrong: addresses that are no groups; C{foreign}: a group of the other IP family.
    """

    addresses = (("10.0.1.1",), ("10.0.1.2",), ("10.0.1.3",))
    groups = ("239.1.2.3", "239.1.2.4")
    wrong = ("10.0.1.2", "240.0.0.1")
    foreign = "ff0e::1:3"

    def member(self, host: int, group: int = 0, protocol: DatagramRecorder | None = None) -> DatagramRecorder:
        """Join a group at a host."""
        endpoint = DatagramGroupEndpoint(self.clock, self.groups[group], self.devices[host])
        factory = MessageFactory(lambda: protocol or DatagramRecorder())
        made: Any = self.successResultOf(endpoint.connect(factory))
        assert isinstance(made, DatagramRecorder)
        return made

    def texts(self, members: list[DatagramRecorder]) -> list[list[bytes]]:
        """Return the texts that the members have received."""
        self.pause(0.1)
        return [[data for data, _peer in each.received] for each in members]

    def test_all(self) -> None:
        """A datagram to a group reaches all its members, including the sender, and no other host."""
        members = [self.member(0), self.member(1), self.member(1)]
        other = self.member(2, 1)
        members[0].transport.write(b"to all")
        self.assertEqual(self.texts([*members, other]), [[b"to all"]] * 3 + [[]])
        sender = DatagramPeer(GID.fromIP(self.addresses[0][0]), members[0].transport.qpn)
        self.assertEqual(members[2].received[0][1], sender)
        members[2].transport.write(b"to one", sender)
        self.assertEqual(self.texts(members), [[b"to all", b"to one"], [b"to all"], [b"to all"]])
        self.end([*members, other])

    def end(self, members: list[DatagramRecorder]) -> None:
        for each in members:
            each.transport.loseConnection()
            self.assertEqual(each.calls, ["start", "stop"])
        self.assertEqual(self.network._members, {group: [] for group in self.groups})
        self.assertNothingLeft()

    def test_joinAndLeave(self) -> None:
        """A service may join groups, and leave them; both may be repeated."""
        members = [self.member(0), self.member(1, 1)]
        transport = members[1].transport
        for _ in range(2):
            group = self.successResultOf(transport.joinGroup(self.groups[0]))
        self.assertEqual(group, members[0].transport.peer)
        members[0].transport.write(b"1")
        members[0].transport.write(b"2", self.successResultOf(transport.joinGroup(self.groups[1])))
        self.assertEqual(self.texts(members), [[b"1"], [b"1", b"2"]])
        for _ in range(2):
            self.assertIsNone(self.successResultOf(transport.leaveGroup(self.groups[0])))
        members[0].transport.write(b"3")
        self.assertEqual(self.texts(members), [[b"1", b"3"], [b"1", b"2"]])
        self.end(members)
        self.assertIsNone(self.successResultOf(transport.leaveGroup(self.groups[0])))
        self.failureResultOf(transport.joinGroup(self.groups[0]), InvalidRequest)

    def test_wrongGroups(self) -> None:
        """Addresses that are no groups are refused before anything is opened, and by transports."""
        others = (*self.wrong, "example.com", "")
        for address in others:
            self.assertRaises(InvalidRequest, DatagramGroupEndpoint, self.clock, address, self.devices[0])
        self.assertNothingLeft()
        member = self.member(0)
        for address in others:
            self.failureResultOf(member.transport.joinGroup(address), InvalidRequest)
            self.failureResultOf(member.transport.leaveGroup(address), InvalidRequest)
        self.failureResultOf(member.transport.joinGroup(self.foreign), InvalidRequest)
        self.assertIsNone(self.successResultOf(member.transport.leaveGroup(self.foreign)))
        endpoint = DatagramGroupEndpoint(self.clock, self.foreign, self.devices[0])
        self.failureResultOf(endpoint.connect(MessageFactory(DatagramRecorder)), InvalidRequest)
        member.transport.loseConnection()
        self.assertNothingLeft()

    def test_cannotJoin(self) -> None:
        """If the system refuses to join a group, the error is reported, and everything is released."""
        route: Any = self.devices[0].routes[0]
        self.patch(route._carrier, "joined", Mock(side_effect=DeviceUnavailable("a test's")))
        endpoint = DatagramGroupEndpoint(self.clock, self.groups[0], self.devices[0])
        self.failureResultOf(endpoint.connect(MessageFactory(DatagramRecorder)), DeviceUnavailable)
        self.failureResultOf(endpoint.connect(MessageFactory(lambda: None)), InvalidRequest)
        self.assertNothingLeft()

    def test_failing(self) -> None:
        """A protocol that raises leaves the group, and other members on its host still receive."""
        failing = self.member(1, protocol=Failing())
        members = [self.member(0), self.member(1), failing]
        for text in (b"1", b"2"):
            members[0].transport.write(text)
            self.pause(0.1)
        self.assertEqual(len(self.flushLoggedErrors(RuntimeError)), 1)
        self.assertEqual(self.texts(members), [[b"1", b"2"], [b"1", b"2"], []])
        for each in members:
            each.transport.loseConnection()
        self.assertNothingLeft()

    def test_portDown(self) -> None:
        """While a port is down, it receives nothing for its groups."""
        members = [self.member(0), self.member(1)]
        for isUp in (False, True):
            self.devices[1].setPortEnabled(1, isUp)
            members[0].transport.write(b"%d" % isUp)
            self.pause(0.1)
        self.assertEqual(self.texts(members), [[b"0", b"1"], [b"1"]])
        for each in members:
            each.transport.loseConnection()
        self.assertNothingLeft()


class IPv6GroupTests(GroupTests):
    """IPv6 multicast groups, whose addresses are their GIDs."""

    addresses = (("fd00::1",), ("fd00::2",), ("fd00::3",))
    groups = ("ff0e::1:3", "ff02::1:4")
    wrong = ("fd00::2", "fe80::1")
    foreign = "239.1.2.3"
