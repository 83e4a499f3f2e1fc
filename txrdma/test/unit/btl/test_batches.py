"""Batches: many messages that are sent or received at once."""

from __future__ import annotations

from array import array

from twisted.internet.defer import CancelledError, Deferred
from twisted.python.failure import Failure

from txrdma.btl.core.assembly import LONGEST
from txrdma.btl.errors import MessageFailed
from txrdma.error import InvalidRequest
from txrdma.test.support.btl.hosts import HostsCase, ORDERED, TAG
from txrdma.test.unit.btl import test_receivebuffers

WAITED = 7


class BatchTests(HostsCase):
    """Messages of C{sendMany} arrive as if they had been sent one by one."""

    def test_order(self) -> None:
        """Messages of all lengths arrive in order, at a handler and at a program that receives them."""
        client, server = self.connected()
        for messages in (
            [b"%d" % number for number in range(5000)],
            [bytes([number]) * (number * 37 % 700) for number in range(200)],
            [bytes([number]) * size for number, size in enumerate((5, 5000, 0, 200_000, 7))],
        ):
            self.outcome(client.transport.sendMany(ORDERED, messages))
            self.assertEqual([data for _tag, data in server.tagged], messages)
            server.tagged.clear()
            self.outcome(client.transport.sendMany(WAITED, messages))
            self.assertEqual(self.outcome(server.transport.receiveMany(WAITED)), messages)
        self.assertEqual(server.transport._inbox._bytes, 0)

    def test_between(self) -> None:
        """A batch is delivered in order with other messages of its tag, which may share its last packet."""
        client, server = self.connected()
        self.pause(0.1)
        counters = self.counters()
        before = counters.packSends
        client.transport.post(ORDERED, b"first")
        client.transport.sendMany(ORDERED, [b"a", b"b"])
        client.transport.post(ORDERED, b"last")
        self.wait(lambda: len(server.tagged) == 4)
        self.assertEqual([data for _tag, data in server.tagged], [b"first", b"a", b"b", b"last"])
        self.assertEqual(counters.packSends - before, 1)

    def test_rows(self) -> None:
        """Each row of an array is a message."""
        client, server = self.connected()
        for width in (4, 1000):
            items = array("d", range(20 * width))
            table = memoryview(items).cast("B").cast("d", (20, width))
            self.outcome(client.transport.sendMany(WAITED, table))
            received = self.outcome(server.transport.receiveMany(WAITED))
            self.assertEqual([len(each) for each in received], [8 * width] * 20)
            self.assertEqual(array("d", b"".join(received)), items)

    def test_window(self) -> None:
        """A batch beyond the window of its tag waits for the program that receives it."""
        client, server = self.connected()
        messages = [number.to_bytes(4, "big") * 25 for number in range(60_000)]
        sent = client.transport.sendMany(WAITED, messages)
        self.pause(2.0)
        self.assertNoResult(sent)
        received: list[bytes] = []
        while len(received) < len(messages):
            received += self.outcome(server.transport.receiveMany(WAITED))
        self.assertEqual(received, messages)
        self.outcome(sent)

    def test_requests(self) -> None:
        """The messages of a packet fire pending requests of all kinds in order."""
        client, server = self.connected()
        into = bytearray(10)
        waiting: list[Deferred[object]] = [
            server.transport.receive(WAITED),
            server.transport.receive(WAITED, into),
            server.transport.receive(WAITED, bytearray(1)),
            server.transport.receiveMany(WAITED),
        ]
        nested: list[bytes] = []
        waiting[0].addCallback(lambda data: server.transport.receive(WAITED).addCallback(nested.append))
        client.transport.sendMany(WAITED, [b"one", b"two", b"three", b"four"])
        self.wait(lambda: waiting[3].called)
        self.assertEqual((self.successResultOf(waiting[1]), into[:3]), (3, b"two"))
        self.failureResultOf(waiting[2], InvalidRequest)
        self.assertEqual(self.successResultOf(waiting[3]), [b"three", b"four"])
        self.assertEqual(nested, [])
        client.transport.post(WAITED, b"five")
        self.wait(lambda: nested)
        self.assertEqual(nested, [b"five"])

    def test_longMessages(self) -> None:
        """Messages of a batch that exceed the window of their tag wait, whatever their length."""
        client, server = self.connected()
        messages = [bytes([number]) * (3 << 20) for number in range(3)]
        batch = client.transport.sendMany(WAITED, messages)
        self.pause(1.0)
        self.assertNoResult(batch)
        self.assertEqual([self.outcome(server.transport.receive(WAITED)) for _each in messages], messages)
        self.outcome(batch)

    def test_badCalls(self) -> None:
        """Batches with an invalid message are refused as a whole, and an empty one arrives at once."""
        client, server = self.connected()
        transport = client.transport
        for bad in ([b"x", memoryview(bytes(8))[::2]], [b"x", bytes(LONGEST + 1)], b"one", [1, 2]):
            self.assertRaises(InvalidRequest, transport.sendMany, ORDERED, bad)
        self.assertRaises(InvalidRequest, transport.sendMany, -1, [])
        self.assertIsNone(self.successResultOf(transport.sendMany(ORDERED, [])))
        self.pause(0.1)
        self.assertEqual(server.tagged, [])

    def test_released(self) -> None:
        """A buffer that was released is refused, alone or among others."""
        client, _server = self.connected()
        released = memoryview(bytearray(10))
        released.release()
        for messages in (released, [b"x", released]):
            self.assertRaises(InvalidRequest, client.transport.sendMany, TAG, messages)

    def test_end(self) -> None:
        """A batch fails once when the connection ends; later batches are refused."""
        client, server = self.connected()
        failures: list[Failure] = []
        for tag in (ORDERED, WAITED):
            client.transport.sendMany(tag, [bytes(1000)] * 10_000).addErrback(failures.append)
        cancelled = client.transport.sendMany(ORDERED, [b"x"])
        cancelled.cancel()
        self.failureResultOf(cancelled, CancelledError)
        server.transport.abortConnection()
        self.wait(lambda: client.lost)
        client.transport.sendMany(ORDERED, [b"x"] * 3).addErrback(failures.append)
        self.assertEqual([each.type for each in failures], [MessageFailed] * 3)
        self.assertNothingLeft()


class OneHostBatchTests(test_receivebuffers.OneHostCase, BatchTests):
    """The tests between two processes of one host, where long messages use shared memory."""
