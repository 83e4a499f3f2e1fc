"""Ends of rsocket streams, in simulated time."""

from __future__ import annotations

import errno
import gc
from typing import Any
from unittest.mock import Mock
from weakref import ref

from twisted.internet.error import CannotListenError, ConnectError, ConnectionDone, ConnectionLost
from twisted.internet.protocol import Factory
from twisted.trial.unittest import SynchronousTestCase

from txrdma.cm.connections.adapter import Adapter
from txrdma.cm.connections.transport import RDMATransport
from txrdma.cm.rsocket import endpoints, stream
from txrdma.cm.rsocket._core import RSocket, Sizes
from txrdma.cm.rsocket.endpoints import (
    RANGES,
    RSocketClientEndpoint,
    RSocketOptions,
    RSocketServerEndpoint,
)
from txrdma.cm.rsocket.stream import RSocketEnd
from txrdma.cm.terms import RANGES as TERM_RANGES
from txrdma.cm.terms import Terms
from txrdma.error import InvalidRequest, ResourceExhausted
from txrdma.iba.headers import Opcode
from txrdma.kit.forwardclock import sharedForwardClock
from txrdma.streams._lifecycle import StreamLife
from txrdma.streams.connection import StreamConnection
from txrdma.test.support.cm.messaging import MessagingCase, PORT
from txrdma.testing.protocols import ProducerRecorder, Recorder, Recorders
from txrdma.verbs.devices import DeviceSpec

_UNPROBED = RSocketOptions(keepalive=None)
_SERVER = Factory.forProtocol(Recorder), RSocketServerEndpoint
_CLIENT = Factory.forProtocol(Recorder), RSocketClientEndpoint


class OptionTests(SynchronousTestCase):
    """Options of endpoints."""

    def test_numbers(self) -> None:
        """Sizes and times with which no stream works are refused."""
        for field, values in {
            "receives": (-1, 15, 1 << 16),
            "sends": (-1, 15, 1 << 16),
            "receiveBuffer": (-1, 2048, 1 << 40),
            "sendBuffer": (-1, 1024, 1 << 40),
            "mappings": (-1, 129),
        }.items():
            for value in values:
                with self.assertRaisesRegex(InvalidRequest, field):
                    RSocketOptions(Sizes()._replace(**{field: value}))
        for seconds in (-1, 0, float("nan")):
            with self.assertRaisesRegex(InvalidRequest, "keepalive"):
                RSocketOptions(keepalive=seconds)


class LargestTests(MessagingCase):
    """Connections with as many receives and requests as their options permit."""

    def test_streams(self) -> None:
        sizes = Sizes(receives=RANGES["receives"][1], sends=RANGES["sends"][1])
        options, served = RSocketOptions(sizes, keepalive=None), Recorders(Recorder)
        self.listenAt(served, RSocketServerEndpoint, options=options)
        client = self.result(self.connectTo(*_CLIENT, options=options))
        client.transport.write(b"message")
        self.wait(lambda: served.protocols and served.protocols[0].received == b"message")

    def test_messages(self) -> None:
        receives, sends = (TERM_RANGES[name][1] for name in ("receives", "sends"))
        client, server = self.connected(*(Terms(messageBytes=64, receives=receives, sends=sends),) * 2)
        client.transport.sendMessage(b"message")
        self.wait(lambda: server.messages)
        self.closed(client, server)


class ListeningTests(MessagingCase):
    """Ports that cannot be listened to."""

    def check(self, device: DeviceSpec, expected: int) -> None:
        endpoint = RSocketServerEndpoint(self.clock, PORT, device)
        error = self.failureResultOf(endpoint.listen(Recorders()), CannotListenError).value
        self.assertIsInstance(error.socketError, OSError)
        self.assertEqual(error.socketError.errno, expected)

    def test_portInUse(self) -> None:
        """As over TCP, the error contains that of a system call."""
        self.listenAt(*_SERVER)
        self.check(self.devices[1], errno.EADDRINUSE)

    def test_noDevice(self) -> None:
        self.check("pyverbs:none", errno.EADDRNOTAVAIL)


class UnprobedCase(MessagingCase):
    def unprobed(self, options: RSocketOptions = _UNPROBED) -> tuple[Recorder, Recorders]:
        """Connect to a server that does not probe its clients; return the client and the server's factory."""
        served = Recorders(Recorder)
        self.listenAt(served, RSocketServerEndpoint, options=_UNPROBED)
        return self.result(self.connectTo(*_CLIENT, options=options)), served


class ProducerTests(UnprobedCase):
    """Connections that are closed while a producer is registered."""

    def test_producerThatUnregistersWhenResumedEndsConnection(self) -> None:
        client, _served = self.unprobed()
        self.pause(0.1)  # until the packets in flight cause no further iteration
        producer = ProducerRecorder(client.transport.unregisterProducer)
        client.transport.registerProducer(producer, True)
        client.transport.write(bytes(70_000))  # few enough that the peer returns no credits
        client.transport.loseConnection()
        self.wait(lambda: client.lost.called, 5.0)
        self.assertIs(client.reason.type, ConnectionDone)
        self.assertEqual(producer.calls, ["pause", "resume"])
        self.assertNothingLeft()

    def test_idleProducerDoesNotPreventClose(self) -> None:
        """As over TCP, a connection closes while a push producer is registered that has nothing to write."""
        client, _served = self.unprobed()
        producer = ProducerRecorder()
        client.transport.registerProducer(producer, True)
        client.transport.loseConnection()
        self.wait(lambda: client.lost.called, 5.0)
        self.assertIs(client.reason.type, ConnectionDone)
        self.assertEqual(producer.calls, ["stop"])
        self.assertNothingLeft()

    def test_closeWaitsForResumedProducer(self) -> None:
        """As over TCP, a producer that is resumed after the close may write once more, later."""
        client, served = self.unprobed()
        producer = ProducerRecorder()
        client.transport.registerProducer(producer, True)
        client.transport.write(bytes(70_000))
        client.transport.loseConnection()
        self.wait(lambda: "resume" in producer.calls, 5.0)
        self.pause(1.0)
        self.assertFalse(client.lost.called)
        client.transport.write(b"more")
        self.wait(lambda: client.lost.called, 5.0)
        self.assertEqual(served.protocols[0].received, bytes(70_000) + b"more")
        self.assertEqual(producer.calls, ["pause", "resume", "stop"])
        self.assertNothingLeft()


class ClosingTests(UnprobedCase):
    """Connections that one end closes in order."""

    def test_lostAcknowledgementOfClose(self) -> None:
        """A connection without data is closed in order if only the acknowledgement of the close is lost."""
        client, _served = self.unprobed()
        client.transport.write(b"acknowledged")
        self.pause(0.1)
        self.network.drop(lambda packet: packet.bth.opcode is Opcode.RC_ACKNOWLEDGE, 10)
        client.transport.loseConnection()
        self.wait(lambda: client.lost.called, 5.0)
        self.assertIs(client.reason.type, ConnectionDone)
        self.assertNothingLeft()

    def closeUnacknowledged(self) -> Recorder:
        """Write and close at a client that receives no acknowledgements; return it after its end."""
        client, served = self.unprobed()
        self.pause(0.1)
        self.network.drop(lambda packet: packet.bth.opcode is Opcode.RC_ACKNOWLEDGE, 10)
        client.transport.write(b"bytes")
        client.transport.loseConnection()
        self.wait(lambda: client.lost.called, 5.0)
        self.assertEqual(served.protocols[0].received, b"bytes")
        self.assertNothingLeft()
        return client

    def test_lostAcknowledgementOfBytes(self) -> None:
        """A connection is closed in order if the peer's DREQ states that it has received the close."""
        self.assertIs(self.closeUnacknowledged().reason.type, ConnectionDone)

    def test_lostAcknowledgementFromOtherImplementation(self) -> None:
        """A connection is lost if bytes are not acknowledged and the DREQ contains no private data."""
        self.patch(RSocketEnd, "_leave", StreamConnection._leave)
        self.assertIs(self.closeUnacknowledged().reason.type, ConnectionLost)

    def test_bothCloseWhileBytesWait(self) -> None:
        """An end that closes is lost if the peer closes as well, before it has room for all bytes."""
        client, served = self.unprobed()
        self.wait(lambda: served.protocols)
        (server,) = served.protocols
        server.transport.pauseProducing()
        client.transport.write(bytes(1 << 20))
        client.transport.loseConnection()
        self.pause(1.0)
        server.transport.loseConnection()
        self.wait(lambda: client.lost.called and server.lost.called, 5.0)
        self.assertIs(client.reason.type, ConnectionLost)
        self.assertIs(server.reason.type, ConnectionDone)
        self.assertNothingLeft()


class ConsecutiveTests(UnprobedCase):
    """Connections of which each begins when the last one has ended."""

    def test_deviceStaysOpen(self) -> None:
        """A connection that begins in C{connectionLost} uses the adapter of the last one."""
        client, served = self.unprobed()
        adapter = client.transport.connection.adapter
        self.patch(adapter, "_isOwner", True)
        following: list[Any] = []

        def connectAgain(_: None) -> None:
            self.connectTo(*_CLIENT, options=_UNPROBED).addCallback(following.append)

        client.lost.addCallback(connectAgain)
        client.transport.loseConnection()
        self.wait(lambda: following)
        self.assertIs(following[0].transport.connection.adapter, adapter)
        following[0].transport.loseConnection()
        self.wait(lambda: all(each.lost.called for each in served.protocols), 5.0)
        self.assertNothingLeft()

    def test_pausedAtTheEnd(self) -> None:
        """A lost connection whose program does not read does not keep the device open."""
        client, served = self.unprobed()
        adapter = client.transport.connection.adapter
        self.patch(adapter, "_isOwner", True)
        client.transport.pauseProducing()
        self.wait(lambda: served.protocols)
        served.protocols[0].transport.write(b"unread")
        served.protocols[0].transport.loseConnection()
        self.wait(lambda: not client.transport.stream._core, 10.0)
        self.wait(lambda: not adapter._holders, 10.0)
        self.assertFalse(client.lost.called)
        client.transport.resumeProducing()
        self.wait(lambda: client.lost.called)
        self.assertEqual(bytes(client.received), b"unread")
        self.assertNothingLeft()


class KeepaliveTests(UnprobedCase):
    """Probes of idle peers."""

    def test_vanishedPeer(self) -> None:
        """A probe detects a silent peer. When probes are enabled again, they use the same interval."""
        client, served = self.unprobed(RSocketOptions(keepalive=2.0))
        self.pause(10.0)
        self.assertFalse(client.lost.called)
        for enabled in (False, True):
            client.transport.setTcpKeepAlive(enabled)
            self.assertIs(client.transport.getTcpKeepAlive(), enabled)
        enabledAt = self.clock.seconds()
        self.pause(1.0)  # until the next probe
        self.assertAlmostEqual(self.clock.seconds() - enabledAt, 2.0, 1)
        self.network.partition(*(each[0] for each in self.addresses))
        self.wait(lambda: client.lost.called, 60.0)
        self.assertIs(client.reason.type, ConnectionLost)
        served.protocols[0].transport.abortConnection()
        self.assertNothingLeft()

    def test_vanishedPeerAfterClockSetBack(self) -> None:
        """A probe is not late by as much as the clock was set back, if other packets arrive."""
        client, served = self.unprobed(RSocketOptions(keepalive=2.0))
        self.pause(1.0)
        self.clock.rightNow -= 1800.0
        sharedForwardClock(self.clock).seconds()  # as each packet of the device does
        self.network.partition(*(each[0] for each in self.addresses))
        self.wait(lambda: client.lost.called, 60.0)
        self.assertIs(client.reason.type, ConnectionLost)
        served.protocols[0].transport.abortConnection()
        self.assertNothingLeft()


class FailureTests(MessagingCase):
    """Connections that fail before they are established."""

    def setUp(self) -> None:
        """Record all ends, and weak references to the streams that have buffers in registered memory."""
        super().setUp()
        self.streamEnds: list[RSocketEnd] = []
        self.streams: list[ref[RSocket]] = []

        def makeEnd(*arguments: Any) -> RSocketEnd:
            self.streamEnds.append(RSocketEnd(*arguments))
            return self.streamEnds[-1]

        def makeStream(*arguments: Any) -> RSocket:
            made = RSocket(*arguments)
            self.streams.append(ref(made))
            return made

        self.patch(endpoints, "RSocketEnd", makeEnd)
        self.patch(stream, "RSocket", makeStream)

    def assertFails(self) -> None:
        """Connect to the second device, and assert that this fails."""
        self.failure(self.connectTo(*_CLIENT, options=_UNPROBED), ConnectError)

    def assertReleased(self) -> None:
        """Assert that streams are released, though all ends are still referenced."""
        gc.collect()
        self.assertEqual([each() for each in self.streams], [None] * len(self.streamEnds))

    def test_failedClientReleasesMemory(self) -> None:
        self.assertFails()
        self.assertEqual(len(self.streamEnds), 1)
        self.assertReleased()

    def test_refusedTransitionReleasesServerMemory(self) -> None:
        self.listenAt(*_SERVER, options=_UNPROBED)
        self.patch(RDMATransport, "ready", Mock(side_effect=ResourceExhausted("no more queue pairs")))
        self.assertFails()
        self.assertEqual(len(self.streamEnds), 2)
        self.assertReleased()


class ExceptionTests(MessagingCase):
    """An unexpected exception ends its stream at both ends, and no other one."""

    def setUp(self) -> None:
        super().setUp()
        self.accepted = Recorders(Recorder)
        self.listenAt(self.accepted, RSocketServerEndpoint, options=_UNPROBED)
        self.bystander, self.peer = self.pair()

    def pair(self) -> tuple[Recorder, Recorder]:
        server = self.accepted.next()
        client = self.result(self.connectTo(*_CLIENT, options=_UNPROBED))
        return client, self.result(server)

    def raiseOnce(self, owner: Any, name: str) -> None:
        """Let the next call of a method, or the next use of a property, raise an exception."""
        usual = getattr(owner, name)

        def replacement(*arguments: Any, **named: Any) -> Any:
            setattr(owner, name, usual)
            raise ZeroDivisionError("simulated")

        self.patch(owner, name, property(replacement) if isinstance(usual, property) else replacement)

    def assertContained(self) -> None:
        """Assert that the exception was logged once, that the other stream works, and nothing is left."""
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)
        self.bystander.transport.write(b"still open")
        self.wait(lambda: self.peer.received == b"still open")
        self.bystander.transport.loseConnection()
        self.wait(lambda: self.bystander.lost.called and self.peer.lost.called)
        self.assertNothingLeft()

    def check(self, owner: Any, name: str) -> None:
        client, server = self.pair()
        self.raiseOnce(owner, name)
        client.transport.loseConnection()
        self.wait(lambda: client.lost.called and server.lost.called)
        self.assertContained()

    def test_close(self) -> None:
        self.check(RSocket, "close")

    def test_endOfConnection(self) -> None:
        self.check(RSocket, "isDelivered")

    def test_afterEndOfConnection(self) -> None:
        """An exception after the message connection has ended keeps no adapter open."""
        usual, raised = StreamLife.next, list[bool]()

        def next(life: StreamLife, directions: Any, *arguments: Any) -> Any:
            if directions is None and not raised:
                raised.append(True)
                raise ZeroDivisionError("simulated")
            return usual(life, directions, *arguments)

        self.patch(StreamLife, "next", next)
        self.patch(Adapter, "holdUntilReported", Adapter.hold)  # as for an adapter that owns its device
        client, server = self.pair()
        client.transport.loseConnection()
        self.wait(lambda: client.lost.called and server.lost.called)
        self.assertContained()

    def test_privateDataOfDREQ(self) -> None:
        self.check(RSocketEnd, "peerClosed")

    def test_abort(self) -> None:
        """A stream that is aborted ends although an exception is raised when its bytes are dropped."""
        client, server = self.pair()
        self.raiseOnce(RSocket, "drop")
        self.assertRaises(ZeroDivisionError, client.transport.abortConnection)
        self.wait(lambda: client.lost.called and server.lost.called)
        self.bystander.transport.write(b"still open")
        self.wait(lambda: self.peer.received == b"still open")

    def test_start(self) -> None:
        """An attempt fails, and its factory is stopped, if the stream cannot be started."""
        factory = Recorders(Recorder)
        begin = RSocketEnd.makeConnection

        def makeConnection(end: RSocketEnd, transport: RDMATransport) -> None:
            if end.isClient:
                raise ZeroDivisionError("simulated")
            begin(end, transport)

        self.patch(RSocketEnd, "makeConnection", makeConnection)
        self.failure(self.connectTo(factory, RSocketClientEndpoint, options=_UNPROBED), ConnectError)
        self.assertEqual((factory.starts, factory.stops), (1, 1))
        self.assertContained()
