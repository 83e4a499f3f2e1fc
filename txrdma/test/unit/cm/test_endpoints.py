"""Endpoints for messages, their strings, and cancelled attempts."""

from __future__ import annotations

import errno
import socket
from dataclasses import replace
from secrets import randbelow
from typing import Any, cast
from unittest.mock import Mock, patch

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.endpoints import clientFromString, serverFromString
from twisted.internet.error import CannotListenError
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from txrdma.cm.connections import adapter as adapters
from txrdma.cm.connections import attempt, endpoints
from txrdma.cm.connections.datagrams import (
    DatagramClientEndpoint,
    DatagramPeer,
    DatagramProtocol,
    DatagramServerEndpoint,
)
from txrdma.cm.connections.endpoints import (
    AUTOMATIC,
    IBClientEndpoint,
    IBServerEndpoint,
    RDMAClientEndpoint,
    RDMAServerEndpoint,
    USUAL,
)
from txrdma.cm.core import opening
from txrdma.cm.errors import Rejected, Rejection
from txrdma.cm.layouts.messages import RejectReason
from txrdma.cm.manager import ConnectionManager
from txrdma.cm.rsocket.endpoints import RSocketClientEndpoint, RSocketServerEndpoint
from txrdma.cm.terms import KEEPALIVE, LONGEST
from txrdma.commands.resolve import CommandOptions, resolved
from txrdma.error import DeviceUnavailable, InvalidRequest, MalformedDevice, RDMAError, ResourceExhausted
from txrdma.iba.path import IBPath
from txrdma.iba.types import GID, MTU
from txrdma.mad.layouts.values import Rate
from txrdma.mad.resolvers import StaticPathResolver
from txrdma.messages.interfaces import IMessageServerEndpoint
from txrdma.messages.protocol import MessageFactory
from txrdma.soft import device as softdevice
from txrdma.soft.core.recent import RecentNumbers
from txrdma.soft.ports import SoftPort
from txrdma.test.support.cm.messaging import MessagingCase
from txrdma.testing.protocols import MessageRecorder, Recorders


class RDMATests(MessagingCase):
    """The IP port space of RDMA CM."""

    def test_bothEndsKnowAddressesAndPrivateData(self) -> None:
        factory = Recorders(lambda: self.made(b"yes"))
        port = self.listenAt(factory, port=0)
        address = port.getHost()
        self.assertEqual(address.host, "10.0.1.2")
        self.assertEqual(address.serviceID, 0x0000000001060000 | address.port)
        for terms in (replace(USUAL, usesCredits=False), USUAL):
            client = self.result(self.connectTo(port=address.port, terms=terms, privateData=b"hi"))
            self.wait(lambda: self.served[-1].isMade)
            peer = factory.addresses.pop()
            self.assertEqual(peer.privateData, b"hi")
            host = client.transport.getHost()
            self.assertEqual((peer.host, peer.port), ("10.0.1.1", host.port))
            self.assertGreaterEqual(host.port, 0xC000)
            self.assertEqual(client.transport.getPeer(), address)
            self.assertEqual(client.transport.agreed.receives, 32 if terms is USUAL else None)
            client.transport.loseConnection()
            self.wait(lambda c=client: c.lost and self.served[-1].lost)  # type: ignore[misc]  # a lambda
        self.assertNothingLeft()

    def test_taken(self) -> None:
        """A second server at a port fails as over TCP, with an error that names the device and the port."""
        port = self.listenAt()
        again = RDMAServerEndpoint(self.clock, 7471, self.devices[1])
        error = self.cannotListen(again)
        self.assertEqual((error.interface, error.port), (self.devices[1].name, 7471))
        self.assertEqual(error.socketError.errno, errno.EADDRINUSE)
        self.assertIsInstance(error.__cause__, InvalidRequest)
        self.assertRegex(str(error), ":7471: .*choose another")
        port.stopListening()

    def test_takenByAnotherProcess(self) -> None:
        """A server whose service is in use by another process fails as over TCP, too."""
        used = ResourceExhausted("a test's")
        self.patch(ConnectionManager, "listen", Mock(side_effect=used))
        error = self.cannotListen(IBServerEndpoint(self.clock, 0x42, self.devices[1]))
        self.assertEqual((error.interface, error.port), (self.devices[1].name, "0x42"))
        self.assertEqual(error.socketError.errno, errno.EADDRINUSE)
        self.assertIs(error.__cause__, used)
        self.assertIn("a test's", str(error))
        self.assertNothingLeft()

    def test_systemCall(self) -> None:
        """The error contains the number of a failed system call once."""
        failed = OSError(errno.EMFILE, "Too many open files")
        used = ResourceExhausted(f"no UNIX socket: {failed}")
        used.__cause__ = failed
        self.patch(ConnectionManager, "listen", Mock(side_effect=used))
        error = self.cannotListen(RDMAServerEndpoint(self.clock, 7471, self.devices[1]))
        self.assertEqual(error.socketError.errno, errno.EMFILE)
        self.assertEqual(str(error).count(f"[Errno {errno.EMFILE}]"), 1, error)
        self.assertIn("no UNIX socket: Too many open files", str(error))

    def test_noDevice(self) -> None:
        """A server without a device fails as over TCP at an address that the host does not have."""
        error = self.cannotListen(RDMAServerEndpoint(self.clock, 7471, "pyverbs:none"))
        self.assertEqual((error.interface, error.port), ("pyverbs:none", 7471))
        self.assertEqual(error.socketError.errno, errno.EADDRNOTAVAIL)
        self.assertIsInstance(error.__cause__, DeviceUnavailable)

    def cannotListen(self, endpoint: IMessageServerEndpoint) -> Any:
        """Return the error with which a server fails to listen."""
        return self.failureResultOf(endpoint.listen(MessageFactory(MessageRecorder)), CannotListenError).value

    def test_nextConnectionUsesOpenDevice(self) -> None:
        """A connection that begins in C{connectionLost} uses the adapter of the last one."""
        self.listenAt()
        client = self.result(self.connectTo())
        adapter = client.transport.adapter
        self.patch(adapter, "_isOwner", True)
        following: list[Any] = []

        def connectAgain(reason: Failure) -> None:
            self.connectTo().addCallback(following.append)

        self.patch(client, "connectionLost", connectAgain)
        client.transport.loseConnection()
        self.wait(lambda: following)
        self.assertIs(following[0].transport.adapter, adapter)
        self.closed(following[0], self.served[-1])
        self.assertNothingLeft()

    def test_programClosesDevice(self) -> None:
        """In C{connectionLost} a program may close its device, which the connection does not use any more."""
        self.listenAt()
        client = self.result(self.connectTo())
        holders: list[int] = []
        self.patch(client, "connectionLost", lambda reason: holders.append(client.transport.adapter._holders))
        client.transport.loseConnection()
        self.wait(lambda: holders)
        self.assertEqual(holders, [0])
        self.assertNothingLeft()

    def test_pausedReceiverIsNotAskedAgainAndAgain(self) -> None:
        """While the receiver is paused, the client sends no more than its credits and a few probes."""
        self.listenAt()
        client = self.result(self.connectTo())
        self.wait(lambda: self.served[-1].isMade)
        self.served[-1].transport.pauseProducing()
        for _ in range(100):
            client.transport.sendMessage(b"x")
        self.pause(1.0)
        before = self.network.sent
        self.pause(60.0)
        self.assertLess(self.network.sent - before, 20)
        self.served[-1].transport.resumeProducing()
        self.wait(lambda: len(self.served[-1].messages) == 100)

    def test_portsOfDeviceAreQueriedOnce(self) -> None:
        adapter = adapters.adapterOf(self.clock, self.devices[0])
        release = adapter.hold()
        asked: list[int] = []
        gidTable = self.devices[0].gidTable

        def counted(port: int) -> Any:
            asked.append(port)
            return gidTable(port)

        self.patch(self.devices[0], "gidTable", counted)
        for _ in range(10):
            self.assertEqual(adapter.findGID(adapter.usualGID()), (1, 0))
            self.assertIs(adapter.findGID(GID.fromIP("10.0.1.2")), None)
        self.assertEqual(asked, [1])
        self.pause(2 * adapters.REFRESH_SECONDS)
        adapter.mtuOf(1)
        self.assertEqual(asked, [1, 1])
        release()

    def test_REQWithoutAddressHeaderIsRejected(self) -> None:
        port = self.listenAt()
        options = {"terms": replace(USUAL, usesCredits=False), "privateData": b"\xff" * 92}
        asked = self.connectBy(self.path(), serviceID=port.getHost().serviceID, **options)
        error = self.failure(asked, Rejected)
        self.assertEqual(error.status, RejectReason.UNSUPPORTED_REQUEST)


class ArgumentTests(SynchronousTestCase):
    """Arguments of endpoints."""

    def test_terms(self) -> None:
        """Terms that no connection can have are refused."""
        for field, values in {
            "messageBytes": (-1, 1 << 40),
            "receives": (-1, 0, 1 << 16),
            "sends": (-1, 0, 1 << 16),
            "reads": (-1, 256),
            "mtu": (0, 6, 1024),
            "retryCount": (-1, 8),
            "rnrRetryCount": (-1, 8),
            "responseTimeout": (-1, 32),
            "maxCMRetries": (-1, 16),
            "keepalive": (-1, 0, float("nan")),
            "longest": (-1, 1 << 40),
        }.items():
            for value in values:
                with self.assertRaisesRegex(InvalidRequest, "MTU" if field == "mtu" else field):
                    replace(USUAL, **{field: value})  # type: ignore[arg-type]  # values of several types
        self.assertRaises(TypeError, replace, USUAL, sends=1.5)

    def test_timeout(self) -> None:
        """A timeout that is no time is refused before anything is sent."""
        for timeout in (-1, 0, float("nan")):
            for make in (RDMAClientEndpoint, DatagramClientEndpoint, RSocketClientEndpoint):
                with self.assertRaisesRegex(InvalidRequest, "timeout"):
                    make(None, "127.0.0.1", 7471, timeout=timeout)
            with self.assertRaisesRegex(InvalidRequest, "timeout"):
                IBClientEndpoint(None, 7, IBPath(), timeout=timeout)

    def test_hostAndPort(self) -> None:
        """A host or a port that cannot exist is refused before anything is sent."""
        for make in (RDMAClientEndpoint, RSocketClientEndpoint, DatagramClientEndpoint):
            for port in (-1, 1 << 16):
                self.assertRaises(ValueError, make, None, "127.0.0.1", port)
            for host in (None, 5, b"host"):
                self.assertRaises(TypeError, make, None, host, 7471)
            self.assertRaises(TypeError, make, None, "127.0.0.1", "7471")
        for server in (RDMAServerEndpoint, RSocketServerEndpoint, DatagramServerEndpoint):
            for port in (-1, 1 << 16):
                self.assertRaises(ValueError, server, None, port, "soft")
            self.assertRaises(TypeError, server, None, None, "soft")

    def test_device(self) -> None:
        """What is not a device is refused."""
        for make in (RDMAClientEndpoint, RSocketClientEndpoint, DatagramClientEndpoint):
            self.assertRaises(TypeError, make, None, "127.0.0.1", 7471, 5)
        for server in (RDMAServerEndpoint, RSocketServerEndpoint, DatagramServerEndpoint, IBServerEndpoint):
            self.assertRaises(TypeError, server, None, 7471, 5)
        self.assertRaises(TypeError, IBClientEndpoint, None, 7, IBPath(), 5)

    def test_backlog(self) -> None:
        """A backlog with which no client could connect is refused."""
        for backlog in (-1, 0):
            for make in (RDMAServerEndpoint, IBServerEndpoint, RSocketServerEndpoint):
                with self.assertRaisesRegex(InvalidRequest, "backlog"):
                    make(None, 7471, "soft", backlog=backlog)


class NetworkTests(MessagingCase):
    """Hosts with addresses of two IPv4 networks and of IPv6."""

    addresses = (("10.0.1.1", "10.0.2.1", "2001:db8::1"), ("10.0.1.2", "10.0.2.2", "2001:db8::2"))

    def test_sourceIsChosenByDestination(self) -> None:
        """Packets leave from the address of the destination's network."""
        self.listenAt()
        for source, destination in zip(*self.addresses, strict=True):
            protocol = self.result(self.connectTo(host=destination))
            self.assertEqual(protocol.transport.path.localGID, GID.fromIP(source))
            self.wait(lambda: self.served and self.served[-1].isMade)
            self.assertEqual(self.served.pop().transport.path.remoteGID, GID.fromIP(source))

    def test_sourceOfDatagrams(self) -> None:
        """Clients of datagram services send from the address of the destination's network, too."""
        for source, destination in zip(*self.addresses, strict=True):
            asked = self.connectTo(kind=DatagramClientEndpoint, host=destination)
            adapter = adapters.adapterOf(self.clock, self.devices[0])
            (question,) = adapter.localManager._resolving
            self.assertEqual(question.path.sgid, GID.fromIP(source))
            asked.cancel()
            self.failureResultOf(asked, CancelledError)

    def test_sourceOfAnswers(self) -> None:
        """A datagram service answers from the address of the client's network, if its port has several."""
        port = self.listenAt(MessageFactory(DatagramProtocol), DatagramServerEndpoint)
        transport, network = port._transport, GID.fromIP("10.0.1.2")
        adapter, queuePair = transport._adapter, transport._queuePairs[0]
        self.patch(adapter, "sourceGID", {GID.fromIP("10.0.1.1"): network}.__getitem__)
        self.patch(adapter, "requireGID", {network: (queuePair.port, 7)}.__getitem__)
        with patch.object(adapter.domain, "createAddressHandle", side_effect=RDMAError) as create:
            self.assertRaises(
                RDMAError, transport.write, b"", DatagramPeer(GID.fromIP("10.0.1.1"), transport.qpn)
            )
        ((address,), _) = create.call_args
        self.assertEqual((address.sgidIndex, address.port), (7, queuePair.port))
        self.assertNothingLeft()

    def test_sourceOfCommand(self) -> None:
        """C{txrdma resolve} shows the path from the address of the destination's network."""
        for source, destination in zip(*self.addresses, strict=True):
            options = {"what": destination, "device": self.devices[0], "bind": None, "number": 7}
            asked = resolved(self.clock, cast("CommandOptions", {**options, "udp": False, "ask": False}))
            found = self.successResultOf(Deferred.fromCoroutine(asked))
            self.assertIn(f"sgid {GID.fromIP(source)}", found["path"])
        self.assertNothingLeft()

    def test_rateOfPort(self) -> None:
        """A REQ has the rate of the port: kernels limit the rate of their packets to it."""
        attributes = replace(self.devices[0].portAttributes(1), rate=25_781_250_000)
        self.patch(self.devices[0], "portAttributes", lambda number: attributes)
        asked = self.ask()
        adapter = adapters.adapterOf(self.clock, self.devices[0])
        (connection,) = adapter.localManager._connections.values()
        self.assertEqual(connection.request.primary.packetRate, Rate.GBPS_25)
        asked.cancel()
        self.failureResultOf(asked, CancelledError)
        for rate, expected in ((0, Rate.GBPS_2_5), (10**9, Rate.GBPS_2_5), (10**10, Rate.GBPS_10)):
            self.assertEqual(Rate.within(rate), expected)

    def test_acknowledgeDelayOfDevice(self) -> None:
        """Each end's acknowledgement timeout includes the delay that the other end's device reports."""
        for device, delay in zip(self.devices, (16, 18), strict=True):
            device.attributes = replace(device.attributes, ackDelay=delay, acknowledgesByProgram=False)
        client, server = self.connected()
        request, reply = client.transport.connection.request, server.transport.connection.reply
        self.assertEqual(request.primary.localACKTimeout, 17)  # 2 * 2**10 + 2**16
        self.assertEqual(reply.targetACKDelay, 18)
        self.assertEqual(server.transport._pair.query().timeout, 17)
        self.assertEqual(client.transport._pair.query().timeout, 19)

    def test_resolvedPort(self) -> None:
        """C{ib:} clients connect to the path that a resolver returns; on RoCE, to a GID."""
        self.serve()
        there = GID.fromIP("10.0.2.2")
        for target, resolver in (
            (there, None),
            ("10.0.2.2", None),
            ("there", StaticPathResolver({"there": IBPath(dgid=there)})),
        ):
            protocol = self.result(self.connectBy(target, resolver=resolver))
            self.assertEqual(protocol.transport.path.localGID, GID.fromIP("10.0.2.1"))
            self.assertEqual(protocol.transport.path.remoteGID, there)
        self.failureResultOf(self.connectBy("nobody", resolver=StaticPathResolver({})), ValueError)

    def test_resolvedAddress(self) -> None:
        """C{rdma:} clients take the path to an IP address from a resolver, if they have one."""
        self.listenAt()
        path = IBPath(dgid=GID.fromIP("10.0.2.2"), trafficClass=5, mtu=MTU.MTU_512, packetLifeTime=10)
        resolver = StaticPathResolver({"10.0.2.2": path})
        transport = self.result(self.connectTo(host="10.0.2.2", resolver=resolver)).transport
        self.assertEqual((transport.path.trafficClass, transport.agreed.mtu), (5, MTU.MTU_512))
        self.assertEqual(transport.path.localGID, GID.fromIP("10.0.2.1"))
        self.assertEqual(transport.getPeer().host, "10.0.2.2")
        self.failureResultOf(self.connectTo(resolver=resolver), ValueError)

    def test_noAddressOfThisKind(self) -> None:
        """A device without IPv6 cannot connect to an IPv6 address."""
        device = self.network.device("10.0.1.9")
        self.addCleanup(device.close)
        failure = self.failureResultOf(self.connectTo(host="2001:db8::2", device=device), InvalidRequest)
        self.assertIn("no address from which 2001:db8::2 is reached", str(failure.value))


class ZoneTests(MessagingCase):
    """Link-local addresses."""

    addresses = (("fe80::2",), ("fe80::1",))

    def assertAddresses(self, suffix: str, scopeID: int) -> None:
        """Assert that both ends and the listener have a suffix and a scope ID in their addresses."""
        port = self.listenAt()
        client = self.result(self.connectTo(host="fe80::1%eth0"))
        server = self.served[-1]
        self.wait(lambda: server.isMade)
        local, remote = client.transport.getHost(), client.transport.getPeer()
        self.assertEqual((server.transport.getHost(), server.transport.getPeer()), (remote, local))
        self.assertEqual(port.getHost(), remote)
        self.assertEqual((local.host, remote.host), (f"fe80::2{suffix}", f"fe80::1{suffix}"))
        for each in (local, remote, port.getHost(), server.transport.getHost(), server.transport.getPeer()):
            self.assertEqual(each.scopeID, scopeID)
        self.closed(client, server)

    def test_zone(self) -> None:
        """The addresses have the interface of the device as their zone, so that clients can reconnect."""
        self.patch(SoftPort, "_netdev", "eth0")
        self.patch(socket, "if_nametoindex", {"eth0": 3}.__getitem__)
        self.assertAddresses("%eth0", 3)

    def test_zoneOfDatagramService(self) -> None:
        """A datagram service at a link-local address has a zone, and is found with one."""
        self.patch(SoftPort, "_netdev", "eth0")
        self.patch(socket, "if_nametoindex", {"eth0": 3}.__getitem__)
        factory = MessageFactory(DatagramProtocol)
        host = self.listenAt(factory, DatagramServerEndpoint).getHost()
        self.assertEqual((host.host, host.scopeID), ("fe80::1%eth0", 3))
        client = self.result(self.connectTo(factory, DatagramClientEndpoint, host=host.host))
        self.assertEqual(client.transport.peer.gid.ip, "fe80::1")
        client.transport.loseConnection()
        self.assertNothingLeft()

    def test_noInterface(self) -> None:
        """The addresses have no zone if the device has no interface any more."""
        self.patch(SoftPort, "_netdev", "eth0")
        self.patch(socket, "if_nametoindex", Mock(side_effect=OSError("no interface")))
        self.assertAddresses("", 0)


class FreePortTests(MessagingCase):
    """Servers at port 0."""

    def assertNextIsTaken(self, kind: Any) -> None:
        """Assert that a port in use is skipped, and that listening fails if no free one is found."""
        factory = MessageFactory(DatagramProtocol if kind is DatagramServerEndpoint else self.made)
        numbers = Mock(side_effect=[5, 5, 5 + 1])
        self.patch(endpoints, "randbelow", numbers)
        ports = [self.listenAt(factory, kind, port=0) for _ in range(2)]
        self.assertEqual([each.getHost().port for each in ports], [0xC005, 0xC006])
        numbers.side_effect = [5, 6] * 20
        endpoint = kind(self.clock, port=0, device=self.devices[1])
        self.failureResultOf(endpoint.listen(factory), CannotListenError)
        for each in ports:
            each.stopListening()
        self.assertNothingLeft()

    def test_messages(self) -> None:
        self.assertNextIsTaken(RDMAServerEndpoint)

    def test_datagrams(self) -> None:
        self.assertNextIsTaken(DatagramServerEndpoint)


class MatchTests(MessagingCase):
    """Several listeners of one service, which differ by private data."""

    def test_match(self) -> None:
        """The listener with the longest match gets a connection; without one, the client is refused."""
        found: list[str] = []
        ports: list[Any] = []

        def listen(match: bytes) -> None:
            def make() -> MessageRecorder:
                found.append(match.decode())
                return MessageRecorder()

            ports.append(self.listenAt(MessageFactory(make), match=match))

        listen(b"b")
        listen(b"blue")
        for privateData in (b"blue sky", b"bl", b"bluebell"):
            self.result(self.connectTo(privateData=privateData))
        self.assertEqual(found, ["blue", "b", "blue"])
        error = self.failure(self.connectTo(privateData=b"red"), Rejected)
        self.assertEqual(error.status, RejectReason.INVALID_SERVICE_ID)
        again = RDMAServerEndpoint(self.clock, 7471, self.devices[1], match=b"b")
        self.failureResultOf(again.listen(MessageFactory(MessageRecorder)), CannotListenError)
        for port in ports:
            port.stopListening()


class PeerToPeerTests(MessagingCase):
    """Two ends that connect to each other, without a listener."""

    def meet(self, delay: float, *endpoints: Any) -> None:
        """Connect both ends, the second one later; both get one connection, which transfers messages."""
        factory = Recorders(MessageRecorder)
        asked = []
        for endpoint in endpoints:
            asked.append(endpoint.connect(factory))
            if delay:
                self.pause(delay)
        self.wait(lambda: all(each.called for each in asked))
        ends = [self.successResultOf(each) for each in asked]
        self.assertEqual(len(factory.protocols), 2)
        for end, peer in zip(ends, ends[::-1], strict=True):
            end.transport.sendMessage(bytes(10_000))
            self.wait(lambda peer=peer: peer.messages)  # type: ignore[misc]  # a lambda
            found = end.transport.getPeer()
            self.assertEqual((found.qpn, found.gid), (peer.transport.qpn, peer.transport.getHost().gid))
        privateData = [each.transport.getPeer().privateData for each in ends]
        self.assertEqual(privateData, [b"second", b"first"])
        ends[0].transport.loseConnection()
        self.wait(lambda: ends[0].lost and ends[1].lost)
        self.assertEqual([each.ends for each in ends], [["ConnectionDone"]] * 2)

    def bothPaths(self) -> tuple[IBPath, IBPath]:
        """Return the path from each end to the other one."""
        path = self.path()
        return path, replace(path, sgid=path.dgid, dgid=path.sgid)

    def test_connected(self) -> None:
        """Both ends connect by a service ID or by a port, at the same time or one later."""
        kinds: list[tuple[Any, Any]] = [
            (IBClientEndpoint, [(7, each) for each in self.bothPaths()]),
            (RDMAClientEndpoint, [(host, 7471) for host in ("10.0.1.2", "10.0.1.1")]),
        ]
        for delay in (0.0, 0.5, 0.0):
            for kind, targets in kinds:
                endpoints = (
                    kind(self.clock, *target, device, privateData=data, isPeerToPeer=True)
                    for target, device, data in zip(targets, self.devices, (b"first", b"second"), strict=True)
                )
                self.meet(delay, *endpoints)
        self.assertNothingLeft()

    def test_staleQueuePair(self) -> None:
        """An end that gave up its REQ asks again if its queue pair's number is still in use at the peer."""
        client, server = self.connected()
        number = client.transport.qpn
        beside = self.result(self.again())  # so that the devices remain open
        self.closed(client, server)
        numbers = [number]  # as if the device reused numbers immediately
        self.devices[0]._oldNumbers = RecentNumbers(1)
        self.patch(softdevice, "randbelow", lambda most: numbers.pop() if numbers else randbelow(most))
        guid = adapters.adapterOf(self.clock, self.devices[0]).localManager.guid
        self.patch(
            opening, "_rank", lambda each: 0 if each.localQPN == number else 1 + (each.localCAGUID == guid)
        )
        first, second = (
            IBClientEndpoint(self.clock, 7, each, device, privateData=data, isPeerToPeer=True)
            for each, device, data in zip(self.bothPaths(), self.devices, (b"first", b"second"), strict=True)
        )
        self.meet(0.0, first, second)
        self.assertEqual(numbers, [])
        beside.transport.loseConnection()
        self.assertNothingLeft()

    def test_oneAddress(self) -> None:
        """Both ends may be at the same address of one device, whichever queue pair number is higher."""
        for _ in range(6):
            self.meet(
                0.0,
                *(
                    RDMAClientEndpoint(self.clock, "10.0.1.1", 7471, self.devices[0], privateData=data,
                                       isPeerToPeer=True)
                    for data in (b"first", b"second")
                ),
            )  # fmt: skip
        self.assertNothingLeft()

    def test_unusableRequest(self) -> None:
        """An end that cannot serve the REQ of its peer rejects it, and both attempts fail."""
        self.patch(attempt, "checkRequest", Mock(side_effect=Rejection(RejectReason.UNSUPPORTED_REQUEST)))
        asked = [
            self.connectBy(each, device=device, isPeerToPeer=True)
            for each, device in zip(self.bothPaths(), self.devices, strict=True)
        ]
        self.wait(lambda: all(each.called for each in asked))
        kinds = {self.failureResultOf(each).type for each in asked}
        self.assertEqual(kinds, {Rejection, Rejected})
        self.assertNothingLeft()


class StringTests(SynchronousTestCase):
    """Valid and invalid strings."""

    def test_ibString(self) -> None:
        client: Any = clientFromString(
            None, r"ib:service=0x42:path=dgid \:\:ffff\:127.0.0.3 life 14:device=soft\:127.0.0.2:receives=5"
        )
        self.assertEqual((client._serviceID, client._device), (0x42, "soft:127.0.0.2"))
        self.assertEqual(client._path, IBPath(dgid=GID.fromIP("127.0.0.3"), packetLifeTime=14))
        self.assertEqual((client._terms.receives, client._terms.usesCredits), (5, True))
        self.assertIsNone(client._alternate)
        client = clientFromString(
            None, r"ib:1:dgid \:\:ffff\:127.0.0.3:alternate=sgid \:\:ffff\:127.0.0.4 dgid \:\:ffff\:127.0.0.5"
        )
        ends = GID.fromIP("127.0.0.4"), GID.fromIP("127.0.0.5")
        self.assertEqual(client._alternate, IBPath(sgid=ends[0], dgid=ends[1]))
        for text in (r"ib:1:dgid \:\:ffff\:127.0.0.3:alternate=auto", "rdma:127.0.0.3:1:alternate=auto"):
            client = clientFromString(None, text)
            self.assertIs(client._alternate, AUTOMATIC)
        client = clientFromString(None, r"ib:service=7:to=fe80\:\:2")
        self.assertEqual(client._path, "fe80::2")
        server: Any = serverFromString(None, "ib:service=7:credits=no:messageBytes=100:backlog=3")
        self.assertEqual((server._device, server._backlog), ("soft", 3))
        self.assertEqual((server._terms.messageBytes, server._terms.usesCredits), (100, False))
        self.assertEqual(server._terms.keepalive, KEEPALIVE)
        server = serverFromString(None, "ib:service=7:keepalive=0")
        self.assertIsNone(server._terms.keepalive)
        server = serverFromString(None, "ib:service=7:keepalive=9")
        self.assertEqual(server._terms.keepalive, 9)

    def test_peerAndMatch(self) -> None:
        """C{peer=yes} is for clients, C{match=} for servers."""
        for text in (r"ib:1:dgid \:\:ffff\:127.0.0.3", "rdma:127.0.0.3:7471"):
            client: Any = clientFromString(None, text)
            self.assertFalse(client._isPeerToPeer)
            client = clientFromString(None, text + ":peer=yes")
            self.assertTrue(client._isPeerToPeer)
        for text in ("ib:1", "rdma:127.0.0.3:7471"):
            server: Any = serverFromString(None, text + ":match=blue")
            self.assertEqual(server._match, b"blue")
            self.assertRaises(ValueError, serverFromString, None, text + ":peer=yes")

    def test_mayReload(self) -> None:
        """C{mayReload=yes}, of clients and servers, allows replacing a loaded alternate path."""
        for parse, text in (
            (clientFromString, r"ib:1:dgid \:\:ffff\:127.0.0.3"),
            (clientFromString, "rdma:127.0.0.3:7471"),
            (serverFromString, "ib:1"),
            (serverFromString, "rdma:127.0.0.3:7471"),
        ):
            for words, expected in (("", False), (":mayReload=no", False), (":mayReload=yes", True)):
                endpoint: Any = parse(None, text + words)
                self.assertIs(endpoint._terms.mayReload, expected)
            self.assertRaises(ValueError, parse, None, text + ":mayReload=1")

    def test_timeout(self) -> None:
        """C{timeout=} limits the attempt to connect; there is no limit by default."""
        for text in (r"ib:1:dgid \:\:ffff\:127.0.0.3", "rdma:127.0.0.3:7471"):
            client: Any = clientFromString(None, text)
            self.assertIsNone(client._timeout)
            client = clientFromString(None, text + ":timeout=2.5s")
            self.assertEqual(client._timeout, 2.5)

    def test_rdmaString(self) -> None:
        client: Any = clientFromString(None, "rdma:127.0.0.3:7471")
        self.assertEqual((client._serviceID, client._device), (0x01061D2F, None))
        self.assertEqual((client._terms.usesCredits, client._terms.longest), (True, LONGEST))
        client = clientFromString(None, "rdma:127.0.0.3:7471:credits=no:longest=64K")
        self.assertEqual((client._terms.usesCredits, client._terms.longest), (False, 65536))
        client = clientFromString(None, r"rdma:\:\:1:7471:bindAddress=\:\:1")
        self.assertEqual((client._host, client._device), ("::1", r"soft:\:\:1"))
        for text in ("rdma:127.0.0.3:7471", "rdma:7471:interface=127.0.0.3", "rdma:port=7471:device=soft"):
            server: Any = serverFromString(None, text)
            self.assertEqual(server._port, 7471)
            self.assertEqual(server._device, "soft" if "device" in text else "soft:127.0.0.3")

    def test_malformedDeviceInString(self) -> None:
        """A string with a malformed device is refused like one with another invalid value."""
        for parse, texts in (
            (clientFromString, ("rdma:127.0.0.1:1", "rsocket:127.0.0.1:1", "sidr:127.0.0.1:1", "btl:host:1")),
            (clientFromString, (r"ib:1:to=fe80\:\:1",)),
            (serverFromString, ("rdma:1", "rsocket:1", "sidr:1", "btl:1", "ib:1")),
        ):
            for text in texts:
                for device, word in (("sofa", "'sofa'"), (r"soft\:127.0.0.1\:mtu\=5", "mtu=5")):
                    error = self.assertRaises(MalformedDevice, parse, None, f"{text}:device={device}")
                    self.assertIn(word, str(error))

    def test_invalidStringNamesKeyAndValue(self) -> None:
        for text, word in (
            ("ib:service=x:path=dgid fe80\\:\\:1", "service=x"),
            ("ib:path=dgid fe80\\:\\:1", "service="),
            ("ib:service=1:path=sl 3", "path="),
            ("ib:service=1:path=dgid fe80\\:\\:1:alternate=sl 3", "alternate="),
            ("rdma::1", "host="),
            ("rdma:127.0.0.1:0", "port=0"),
            ("rdma:127.0.0.1:1:2", "'2'"),
            ("rdma:127.0.0.1:1:credits=perhaps", "credits=perhaps"),
            ("rdma:127.0.0.1:1:backlog=3", "backlog=3"),
        ):
            error = self.assertRaises(ValueError, clientFromString, None, text)
            self.assertIn(word, str(error))
        error = self.assertRaises(ValueError, serverFromString, None, "rdma:127.0.0.1:1:path=x")
        self.assertIn("path=x", str(error))
