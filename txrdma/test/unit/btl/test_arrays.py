"""
Buffers whose items are not bytes, such as arrays of numbers.
"""

from __future__ import annotations

import ctypes
from array import array
from typing import Any, ClassVar

from txrdma.error import InvalidRequest
from txrdma.test.support.btl.hosts import HostsCase, TAG
from txrdma.test.unit.btl import test_receivebuffers


class ArrayTests(HostsCase):
    """Buffers whose items are not bytes."""

    def test_sent(self) -> None:
        """All bytes of an array are sent by every call, in one packet and in several."""
        client, server = self.connected()
        for count in (5, 20_000):
            items = array("d", range(count))
            data = items.tobytes()
            name = server.transport.share(memory := bytearray(len(data))).name
            for each in (items, memoryview(items), memoryview(items).cast("B").cast("d", (count // 5, 5))):
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
                self.outcome(client.transport.write(name, each))
                self.assertEqual(memory, data)
                memory[:] = bytes(len(memory))

    def test_formats(self) -> None:
        """Arrays of structures and of numbers in another byte order are sent as their bytes."""

        class Point(ctypes.BigEndianStructure):
            _fields_: ClassVar = [("x", ctypes.c_uint16), ("y", ctypes.c_double)]

        client, server = self.connected()
        for count in (3, 5000):
            items: Any
            for items in ((Point * count)(Point(7, 1.5)), (ctypes.c_uint32.__ctype_be__ * count)(5)):
                self.outcome(client.transport.send(TAG, items))
                self.assertEqual(server.tagged.pop(), (TAG, bytes(items)))
                memory = server.transport.share((type(items))())
                self.outcome(client.transport.write(memory.name, items))
                self.assertEqual(memory.view, bytes(items))

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


class OneHostArrayTests(test_receivebuffers.OneHostCase, ArrayTests):
    """Arrays between two processes of one host, where long messages use shared memory."""
