"""Python objects as messages."""

from __future__ import annotations

import pickle
from unittest import SkipTest

from txrdma.btl.objects import dumps, loads
from txrdma.error import InvalidRequest
from txrdma.test.support.btl.hosts import HostsCase


class Table:
    """An object with a buffer that pickle passes out of band, as arrays of NumPy do."""

    def __init__(self, data: object) -> None:
        self.data = data

    def __reduce_ex__(self, protocol: object) -> tuple[object, ...]:
        return Table, (pickle.PickleBuffer(self.data),)  # type: ignore[arg-type]  # a buffer


class ObjectTests(HostsCase):
    def test_sent(self) -> None:
        """Objects arrive with their buffers, which can be changed, as messages and as answers of calls."""
        client, server = self.connected()
        server.transport.answer(1, lambda data: dumps([loads(data), "seen"]))
        value = {"short": 7, "long": Table(bytearray(range(256)) * 400), "empty": Table(b"")}
        client.transport.post(7, dumps(value))
        found = loads(self.outcome(server.transport.receive(7)))
        self.assertEqual((found["short"], found["empty"].data), (7, b""))
        self.assertEqual(found["long"].data, bytes(range(256)) * 400)
        found["long"].data[0] = 1
        self.assertEqual(loads(self.outcome(client.transport.call(1, dumps(5)))), [5, "seen"])

    def test_notPickled(self) -> None:
        """The bytes of buffers are not part of the pickle."""
        data = b"0123456789" * 100
        message = dumps(Table(data))
        self.assertTrue(message.endswith(data))
        self.assertNotIn(data, message[: -len(data)])
        self.assertLess(len(message), len(data) + 200)

    def test_numpy(self) -> None:
        """NumPy arrays have the same type and shape when received; non-contiguous arrays are copied."""
        try:
            import numpy
        except ImportError:
            raise SkipTest("NumPy is not installed") from None
        table = numpy.arange(20_000, dtype="f4").reshape(100, 200)
        for each in (table, table.T, table[::2, ::3]):
            found = loads(dumps(each))
            self.assertEqual((found.dtype, found.shape), (each.dtype, each.shape))
            self.assertTrue((found == each).all())
            found[0] = 5
        self.assertFalse(loads(dumps(numpy.frombuffer(b"read-only", "u1"))).flags.writeable)

    def test_refused(self) -> None:
        """Messages that contain no object, or other bytes after it, are refused."""
        message = dumps(Table(b"data"))
        for bad in (b"", b"\0\0\0\0", b"\xff" * 40, message[:-1], message + b"x", message[:12]):
            self.assertRaises(InvalidRequest, loads, bad)
        self.assertRaises(pickle.PicklingError, dumps, Table(memoryview(bytes(8))[::2]))
