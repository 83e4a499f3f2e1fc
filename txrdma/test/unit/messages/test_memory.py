"""Views of the bytes of buffers."""

from __future__ import annotations

import ctypes
from array import array, typecodes
from collections.abc import Callable, Iterator
from pickle import PickleBuffer
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from txrdma.error import InvalidRequest
from txrdma.messages.memory import octets


def buffers() -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield names and constructors of objects with contiguous buffers of many formats and shapes."""
    yield "bytearray", lambda: bytearray(b"abc")
    yield "array of doubles", lambda: array("d", (1.0, 2.0))
    yield "array of characters", lambda: array("w" if "w" in typecodes else "u", "abc")
    yield "empty array", lambda: array("d")
    yield "view", lambda: memoryview(bytearray(8))[2:5]
    yield "view of doubles", lambda: memoryview(bytearray(16)).cast("d")
    yield "view of rows", lambda: memoryview(bytearray(16)).cast("B", (4, 4))
    yield "PickleBuffer", lambda: PickleBuffer(array("d", (1.0, 2.0)))
    yield "PickleBuffer of a view", lambda: PickleBuffer(memoryview(bytearray(16)).cast("d")[1:])
    yield "numbers of C", lambda: (ctypes.c_double * 2)(1.0, 2.0)
    yield "view of numbers of C", lambda: memoryview((ctypes.c_double * 4)(1.0, 2.0))[1:3]
    yield "read-only view of numbers of C", lambda: memoryview((ctypes.c_double * 2)(1.0, 2.0)).toreadonly()


class OctetsTests(SynchronousTestCase):
    def test_bytes(self) -> None:
        """The view has the bytes of the buffer, and refers to the buffer's owner, not to another view."""
        for name, make in buffers():
            data = make()
            view = memoryview(octets(data))
            self.assertEqual(
                (view.format, view.ndim, bytes(view)), ("B", 1, memoryview(data).tobytes()), name
            )
            self.assertFalse(isinstance(view.obj, memoryview), name)

    def test_partOfView(self) -> None:
        """A slice of a view of another view has the same offset and length."""
        whole = bytearray(range(16))
        part = memoryview(PickleBuffer(memoryview(whole)))[4:8]
        self.assertEqual(bytes(octets(part)), bytes(range(4, 8)))

    def test_writable(self) -> None:
        """Bytes written to the view of a writable buffer change the buffer."""
        for name, make in buffers():
            data = make()
            view = memoryview(octets(data))
            if memoryview(data).readonly or not view.nbytes:
                continue
            view[:] = b"\1" * len(view)
            self.assertEqual(memoryview(data).tobytes(), b"\1" * len(view), name)

    def test_refused(self) -> None:
        """Objects without a buffer, and buffers that are not contiguous or released, are refused."""
        released = memoryview(b"abc")
        released.release()
        for data in ("text", 7, memoryview(bytes(8))[::2], released):
            self.assertRaises(InvalidRequest, octets, data)
