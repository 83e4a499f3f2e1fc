"""Shared memory of rsocket streams: the contract of C{rdma:} connections, while the stream is used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from zope.interface import implementer

from twisted.internet.defer import CancelledError
from twisted.internet.error import ConnectionLost
from twisted.internet.protocol import connectionDone, Factory, Protocol
from twisted.python.failure import Failure

from txrdma.cm.rsocket import endpoints
from txrdma.cm.rsocket.endpoints import RSocketClientEndpoint, RSocketOptions, RSocketServerEndpoint
from txrdma.error import InvalidRequest
from txrdma.messages.interfaces import IAtomicMemory
from txrdma.test.support.cm.messaging import MessagingCase
from txrdma.testing.contracts import AtomicMemoryContract, RemoteMemoryContract
from txrdma.testing.protocols import MessageRecorder


@implementer(IAtomicMemory)
class MemoryTransport:
    """The shared memory of a stream, with names sent as bytes of the stream."""

    def __init__(self, stream: Any) -> None:
        memory = stream.remoteMemory
        self.share, self.read, self.write = memory.share, memory.read, memory.write
        self.compareAndSwap, self.fetchAndAdd = memory.compareAndSwap, memory.fetchAndAdd
        self.sendMessage, self.loseConnection = stream.write, stream.loseConnection


class StreamOf(Protocol):
    """The protocol of a stream whose events are passed to a recorder of messages."""

    def __init__(self, recorder: MessageRecorder) -> None:
        self.recorder = recorder

    def connectionMade(self) -> None:
        self.recorder.makeConnection(MemoryTransport(self.transport))

    def dataReceived(self, data: bytes) -> None:
        self.recorder.messageReceived(data, None)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self.recorder.connectionLost(reason)


class ConnectionTests(MessagingCase):
    """The RDMA connection of a stream."""

    def test_afterTheEnd(self) -> None:
        """A stream's C{connection} is available while it is connected, and raises afterwards."""
        self.listenAt(Factory.forProtocol(Protocol), RSocketServerEndpoint)
        recorder = StreamOf(MessageRecorder())
        self.result(self.connectTo(Factory.forProtocol(lambda: recorder), RSocketClientEndpoint))
        transport: Any = recorder.transport
        self.assertEqual(transport.connection.route, "rocev2")
        transport.loseConnection()
        self.wait(lambda: recorder.recorder.lost)
        self.assertRaises(InvalidRequest, lambda: transport.connection)

    def test_cancelledByOther(self) -> None:
        """If an errback of a wait for mapped memory cancels another wait, the connection ends normally."""
        recorders = [MessageRecorder(), MessageRecorder()]
        factories = [Factory.forProtocol(lambda each=each: StreamOf(each)) for each in recorders]  # type: ignore[misc]  # a lambda
        self.listenAt(factories[1], RSocketServerEndpoint)
        client = self.result(self.connectTo(factories[0], RSocketClientEndpoint))
        self.wait(lambda: recorders[1].isMade)
        waits = [client.transport.whenMapped(offset) for offset in range(3)]

        def cancelOthers(failure: Failure) -> Failure:
            waits[1].cancel()
            return failure

        waits[0].addErrback(cancelOthers)
        recorders[1].transport.loseConnection()
        self.wait(lambda: all(each.lost for each in recorders))
        for each, kind in zip(waits, (ConnectionLost, CancelledError, ConnectionLost), strict=True):
            self.failureResultOf(each, kind)

    def test_offsetsAreIntegers(self) -> None:
        """Invalid offsets and lengths raise errors in the call, and the connection continues."""
        server = StreamOf(MessageRecorder())
        self.listenAt(Factory.forProtocol(lambda: server), RSocketServerEndpoint)
        recorder = StreamOf(MessageRecorder())
        self.result(self.connectTo(Factory.forProtocol(lambda: recorder), RSocketClientEndpoint))
        transport: Any = recorder.transport
        self.wait(lambda: server.recorder.isMade)
        there: Any = server.transport
        for length, offset in ((10.0, 0), (10, 0.5)):
            self.assertRaises(TypeError, there.mapMemory, length, offset)
        memory = there.mapMemory(10)
        self.result(transport.whenMapped(0))
        self.assertRaises(TypeError, transport.writeMapped, 1.0, b"data")
        self.result(transport.writeMapped(1, b"data"))
        self.assertEqual(bytes(memory.buffer), b"\0data\0\0\0\0\0")
        transport.loseConnection()
        self.wait(lambda: recorder.recorder.lost and server.recorder.lost)
        self.assertEqual(recorder.recorder.ends, ["ConnectionDone"])


class StreamMemoryTests(AtomicMemoryContract, RemoteMemoryContract, MessagingCase):
    """Two streams on a simulated network."""

    def connectedBy(self, one: MessageRecorder, other: MessageRecorder) -> None:
        options = RSocketOptions(keepalive=None)
        factories = [Factory.forProtocol(lambda each=each: StreamOf(each)) for each in (one, other)]  # type: ignore[misc]  # a lambda
        self.listenAt(factories[1], RSocketServerEndpoint, options=options)
        self.result(self.connectTo(factories[0], RSocketClientEndpoint, options=options))
        self.wait(lambda: one.isMade and other.isMade)

    def waitUntil(self, condition: Callable[[], object], seconds: float = 30.0) -> None:
        self.wait(condition, seconds)

    def test_besideTheStream(self) -> None:
        """Reads and writes execute while the stream carries bytes, and a close waits for them."""
        one, other = self.connectedEnds()
        shared = one.transport.share(100_000)
        for _ in range(20):
            other.transport.sendMessage(bytes(50_000))
            one.transport.sendMessage(bytes(50_000))
        done = [other.transport.write(shared.name, bytes([n]) * 5000, 5000 * n) for n in range(20)]
        other.transport.loseConnection()
        self.wait(lambda: one.ends and other.ends)
        for each in done:
            self.assertIsNone(self.successResultOf(each))
        self.assertEqual(bytes(shared.view[::5000]), bytes(range(20)))
        self.assertEqual(sum(len(data) for data, _ in one.messages), 1_000_000)
        self.assertEqual(other.ends, ["ConnectionDone"])
        self.assertNothingLeft()

    def test_peerWithoutReads(self) -> None:
        """A client of librdmacm negotiates no reads; writes need none."""
        self.patch(endpoints, "READS", 0)
        one, other = self.connectedEnds()
        name = one.transport.share(100).name
        self.assertRaises(InvalidRequest, other.transport.read, name, 1)
        self.assertRaises(InvalidRequest, other.transport.fetchAndAdd, name, 1)
        self.result(other.transport.write(name, b"hello"))
