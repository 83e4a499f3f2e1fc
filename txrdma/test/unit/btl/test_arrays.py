"""Buffers whose items are not bytes, such as arrays of numbers."""

from __future__ import annotations

import ctypes
from array import array
from typing import Any, ClassVar
from unittest import SkipTest

from txrdma.error import InvalidRequest
from txrdma.test.support.btl.hosts import HostsCase, TAG
from txrdma.test.unit.btl import test_receivebuffers

WAITED = 7


class ArrayTests(HostsCase):
    def test_sent(self) -> None:
        """Every call sends all bytes of arrays, including structures and other byte orders."""

        class Point(ctypes.BigEndianStructure):
            _fields_: ClassVar = [("x", ctypes.c_uint16), ("y", ctypes.c_double)]

        client, server = self.connected()
        for count in (5, 20_000):  # in one packet, and in several
            numbers = array("d", range(count))
            table = memoryview(numbers).cast("B").cast("d", (5, count // 5))
            arrays: list[Any] = [numbers, memoryview(numbers), table]
            arrays += [(Point * count)(Point(7, 1.5)), (ctypes.c_uint32.__ctype_be__ * count)(5)]
            for each in arrays:
                data = bytes(each)
                self.outcome(client.transport.send(TAG, each))
                self.assertEqual(server.tagged.pop(), (TAG, data))
                client.transport.post(TAG, b"first")
                self.outcome(client.transport.send(TAG, each))
                self.assertEqual([server.tagged.pop(), server.tagged.pop()], [(TAG, data), (TAG, b"first")])
                client.transport.sendMessage(each)
                client.transport.sendMessage(each, 7)
                self.wait(lambda: len(server.messages) == 2)
                self.assertEqual(server.messages, [(data, None), (data, 7)])
                server.messages.clear()
                memory = type(each)() if isinstance(each, ctypes.Array) else bytearray(len(data))
                shared = server.transport.share(memory)
                self.outcome(client.transport.write(shared.name, each))
                self.assertEqual(shared.view, data)

    def test_refused(self) -> None:
        """A buffer that is not contiguous, or was released, is refused by the call."""
        client, _server = self.connected()
        transport = client.transport
        released = memoryview(bytearray(10))
        released.release()
        columns = memoryview(bytes(12)).cast("B", (3, 4))
        for bad in (memoryview(bytes(10))[::2], columns[::2], released, "text", 7.0):
            self.assertRaises(InvalidRequest, transport.send, TAG, bad)
            self.assertRaises(InvalidRequest, transport.post, TAG, bad)
            self.assertRaises(InvalidRequest, transport.sendMessage, bad)
            self.assertRaises(InvalidRequest, transport.write, bytes(16), bad)
            self.assertRaises(InvalidRequest, transport.share, bad)
        error = self.assertRaises(InvalidRequest, transport.send, TAG, columns[::2])
        self.assertIn("(2, 4)", str(error))

    def test_numpy(self) -> None:
        """NumPy arrays are sent, received and shared, except dates and arrays that are not contiguous."""
        try:
            import numpy
        except ImportError:
            raise SkipTest("NumPy is not installed") from None
        client, server = self.connected()
        here, there = client.transport, server.transport
        table: Any = numpy.arange(40_000, dtype="f4").reshape(200, 200)
        arrays: list[Any] = [table, table[3], numpy.array(7), numpy.zeros((0, 3)), numpy.array([True, False])]
        arrays += [numpy.array([1 + 2j, 3]), numpy.array([1, 300], ">i2"), numpy.zeros(3, "u2, f8")]
        for each in arrays:
            self.outcome(here.send(TAG, each))
            self.assertEqual(server.tagged.pop(), (TAG, each.tobytes()))
        into: Any = numpy.zeros_like(table)
        here.post(WAITED, table)
        self.assertEqual(self.outcome(there.receive(WAITED, into)), table.nbytes)
        self.assertTrue((into == table).all())
        self.outcome(here.sendMany(WAITED, table))
        rows = self.outcome(there.receiveMany(WAITED))
        self.assertEqual(rows, [row.tobytes() for row in table])
        self.outcome(here.write(there.share(into).name, 2 * table))
        self.assertTrue((into == 2 * table).all())
        for bad in (table[::2], table.T, numpy.array(["2026-11-30"], "M8[D]")):
            self.assertRaises(InvalidRequest, here.send, TAG, bad)


class OneHostArrayTests(test_receivebuffers.OneHostCase, ArrayTests):
    """Arrays between two processes of one host, where long messages use shared memory."""
