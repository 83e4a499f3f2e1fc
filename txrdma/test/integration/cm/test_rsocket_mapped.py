"""Mapped memory of rsocket streams on a real reactor: transports, ends, invalid peers."""

from __future__ import annotations

from typing import Any

from twisted.internet import reactor as theReactor
from twisted.internet.defer import CancelledError
from twisted.internet.error import ConnectionDone, ConnectionLost
from twisted.internet.task import deferLater

from txrdma.cm.rsocket.messages import immediate, ImmediateKind
from txrdma.error import InvalidRequest, ProtectionError, ResourceExhausted
from txrdma.iba.verbs import Completion, CompletionOpcode, Status
from txrdma.test.integration.cm.test_rsocket import SocketCase
from txrdma.testing.protocols import ProducerRecorder, Recorder

reactor: Any = theReactor


class SharedMemoryTests(SocketCase):
    """The software device's default route on one host."""

    async def both(self, kind: Any = Recorder, server: Any = Recorder, keys: str = "") -> tuple[Any, Any]:
        """Return two connected protocols, whose connection ends with the test."""
        ends = await super().both(kind, server, keys)
        self.addCleanup(self.end, *ends)
        return ends

    async def end(self, client: Any, server: Any) -> None:
        client.transport.loseConnection()
        await client.lost
        await server.lost

    async def mapped(self, end: Any, peer: Any, length: int) -> Any:
        """Map memory at an end, and wait until its peer has received the mapping."""
        memory = end.transport.mapMemory(length)
        await peer.transport.whenMapped(0)
        return memory

    async def test_write(self) -> None:
        """A completed write is in the peer's memory, and precedes later bytes of the stream."""
        client, server = await self.both()
        memory = server.transport.mapMemory(5000, 100)
        await client.transport.whenMapped(100, 5000)
        self.assertEqual(client.transport.peerMappings, [range(100, 5100)])
        self.assertEqual(server.transport.peerMappings, [])
        written = client.transport.writeMapped(4600, b"mapped")
        client.transport.write(b"behind")
        await server.receiving(6)
        self.assertEqual(bytes(memory.buffer[4500:4506]), b"mapped")
        await written
        self.assertEqual(bytes(memory.buffer[:4500]), bytes(4500))

    async def test_answers(self) -> None:
        """A Deferred's callback may write and map immediately, in every context."""
        client, server = await self.both()
        server.transport.mapMemory(10)
        there = client.transport.whenMapped(0).addCallback(lambda _: client.transport.writeMapped(0, b"x"))
        there.addCallback(lambda _: client.transport.mapMemory(5, 77))
        there.addCallback(lambda _: client.transport.write(b"mapped"))
        await server.receiving(6)
        self.assertEqual(server.transport.peerMappings, [range(77, 82)])
        await there

    async def test_closing(self) -> None:
        """C{loseConnection} waits for writes; memory remains readable afterwards and can be closed."""
        client, server = await self.both()
        memory = await self.mapped(server, client, 1_000_000)
        written = client.transport.writeMapped(0, b"\7" * 1_000_000)
        client.transport.loseConnection()
        await client.lost
        await server.lost
        await written
        for each in (client, server):
            self.assertIs(each.reason.type, ConnectionDone)
        self.assertEqual(memory.buffer, b"\7" * 1_000_000)
        memory.close()
        memory.close()

    async def test_halfClosed(self) -> None:
        """An end that has half-closed can neither write nor map, but can close its memory."""
        client, server = await self.both()
        memory = client.transport.mapMemory(10)
        await server.transport.whenMapped(0)
        client.transport.loseWriteConnection()
        while client.transport.stream.isOpen:
            await deferLater(reactor, 0)
        self.assertRaises(InvalidRequest, client.transport.mapMemory, 10, 10)
        await self.assertFailure(client.transport.writeMapped(0, b"x"), ConnectionLost)
        memory.close()
        await server.lost

    async def test_refused(self) -> None:
        """A write to memory that is not mapped is refused, and the connection continues."""
        client, server = await self.both()
        await self.assertFailure(client.transport.writeMapped(0, b"x"), ProtectionError)
        memory = server.transport.mapMemory(100)
        await client.transport.whenMapped(99)
        await self.assertFailure(client.transport.writeMapped(99, b"xy"), ProtectionError)
        self.assertRaises(InvalidRequest, server.transport.mapMemory, 1, 99)
        self.assertRaises(InvalidRequest, server.transport.mapMemory, 0, 100)
        memory.close()
        server.transport.write(b"closed")
        await client.receiving(6)
        self.assertEqual(client.transport.peerMappings, [])
        await self.assertFailure(client.transport.writeMapped(0, b"x"), ProtectionError)
        server.transport.mapMemory(1, 99)
        await client.transport.whenMapped(99)

    async def test_room(self) -> None:
        """The number of mappings is that offered by the peer's string; closed memory frees a mapping."""
        client, server = await self.both(keys=":mappings=2")
        first = client.transport.mapMemory(1, 0)
        client.transport.mapMemory(1, 1)
        self.assertRaises(ResourceExhausted, client.transport.mapMemory, 1, 2)
        first.close()
        client.transport.mapMemory(1, 2)
        for offset in (1, 2):
            await server.transport.whenMapped(offset)
        self.assertEqual(server.transport.peerMappings, [range(1, 2), range(2, 3)])

    async def test_gone(self) -> None:
        """A write to memory that was closed meanwhile ends the connection, as with RC queue pairs."""
        client, server = await self.both()
        self.assertRaises(TypeError, client.transport.whenMapped, 1.5)  # and later operations still work
        memory = await self.mapped(server, client, 100_000)
        server.transport.connection.freeMemory(memory._region)  # without notification
        waiting = client.transport.whenMapped(1 << 40)
        await self.assertFailure(client.transport.writeMapped(0, bytes(100_000)), ConnectionLost)
        await self.assertFailure(waiting, ConnectionLost)
        await self.ended(client, server, ConnectionLost)
        self.assertRaises(InvalidRequest, client.transport.mapMemory, 1)
        for late in (client.transport.writeMapped(0, b"x"), client.transport.whenMapped(0)):
            await self.assertFailure(late, ConnectionLost)
        self.assertEqual(client.transport.peerMappings, [])

    async def test_liar(self) -> None:
        """A peer that sends an invalid entry loses its connection, and pending writes fail."""
        client, server = await self.both()
        waiting = server.transport.whenMapped(0)
        opcode, qpn = CompletionOpcode.RECEIVE_RDMA_WITH_IMMEDIATE, server.transport.connection.qpn
        lie = Completion(0, Status.SUCCESS, opcode, qpn, 24, immediate(ImmediateKind.MAPPING, 8))
        server.transport.stream.completed([lie])
        await self.assertFailure(waiting, ConnectionLost)
        await self.ended(client, server, ConnectionLost)

    async def test_abort(self) -> None:
        """Pending writes fail when either end aborts the connection."""
        client, server = await self.both()
        for each, other in ((client, server), (server, client)):
            await self.mapped(each, other, 2_000_000)
        written = [each.transport.writeMapped(0, bytes(2_000_000)) for each in (client, server)]
        client.transport.abortConnection()
        for write in written:
            await self.assertFailure(write, ConnectionLost)
        await client.lost
        await server.lost

    async def test_cancel(self) -> None:
        """Cancelled requests are withdrawn, and later ones continue."""
        client, server = await self.both()
        memory = await self.mapped(server, client, 3_000_000)
        waiting = client.transport.whenMapped(1 << 40)
        written = [client.transport.writeMapped(0, b"\1" * 3_000_000) for _ in range(2)]
        behind = client.transport.writeMapped(2_999_999, b"\2")
        for each in (waiting, *written):
            each.cancel()
            await self.assertFailure(each, CancelledError)
        await behind
        self.assertEqual(bytes(memory.buffer[-2:]), b"\0\2")
        server.transport.mapMemory(1, 1 << 40)
        await client.transport.whenMapped(1 << 40)
        mapped = client.transport.stream._mapped
        self.assertEqual((mapped._writes, mapped._waiting), ({}, {}))

    async def test_often(self) -> None:
        """Memory that is mapped and closed repeatedly uses up no credits, and leaves nothing."""
        client, server = await self.both(keys=":receives=16")
        regions = server.transport.connection._regions._regions
        before = len(regions)
        for number in range(100):
            memory = server.transport.mapMemory(10, number)
            server.transport.write(b"%02d" % number)
            await client.receiving(2 * number + 2)
            await client.transport.writeMapped(number, b"0123456789")
            self.assertEqual(bytes(memory.buffer), b"0123456789")
            memory.close()
        self.assertEqual(len(regions), before)

    async def test_producer(self) -> None:
        """A producer that was paused after a write to memory is resumed when the write has been sent."""
        client, server = await self.both()
        await self.mapped(server, client, 2_000_000)
        producer = ProducerRecorder(client.transport.unregisterProducer)
        client.transport.registerProducer(producer, True)
        client.transport.writeMapped(0, bytes(2_000_000))
        client.transport.write(b"x")
        await server.receiving(1)
        while len(producer.calls) < 2:
            await deferLater(reactor, 0)
        self.assertEqual(producer.calls, ["pause", "resume"])

    async def test_paused(self) -> None:
        """A peer can write to the memory of a paused protocol."""
        client, server = await self.both()
        memory = await self.mapped(server, client, 10)
        server.transport.pauseProducing()
        client.transport.write(b"unread")
        await client.transport.writeMapped(0, b"x")
        self.assertEqual((server.received, memory.buffer[0]), (b"", ord("x")))
        server.transport.resumeProducing()
        await server.receiving(6)


class RoCETests(SharedMemoryTests):
    """Mapped memory over RoCE v2."""

    more = r"\:route=rocev2"
