"""Elements of buffers and their reduction, with NumPy and without it."""

from __future__ import annotations

import ctypes
import operator
from array import array
from typing import Any
from unittest import SkipTest

from twisted.trial.unittest import SynchronousTestCase

from txrdma.btl.groups import reductions
from txrdma.btl.groups.reductions import alike, Elements, Operation
from txrdma.error import InvalidRequest


def reduced(first: Any, second: Any, operation: Operation) -> Any:
    """Return the reduction of two objects."""
    found = Elements(first, operation)
    found.copy()
    found.combine(found.bytes, Elements(second, operation).bytes)
    return found.result()


class PythonTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.patch(reductions, "_numpy", lambda: None)

    def test_operations(self) -> None:
        """Arrays are reduced item by item."""
        one, other = array("d", [1, 5, -2]), array("d", [3, 4, 0.5])
        self.assertEqual(reduced(one, other, "sum"), array("d", [4, 9, -1.5]))
        self.assertEqual(reduced(one, other, "min"), array("d", [1, 4, -2]))
        self.assertEqual(reduced(one, other, "max"), array("d", [3, 5, 0.5]))
        self.assertEqual(reduced(one, other, "prod"), array("d", [3, 20, -1]))
        self.assertEqual(one, array("d", [1, 5, -2]))

    def test_function(self) -> None:
        """A reduction function is called with all items."""

        def either(one: Any, other: Any) -> list[int]:
            return [a | b for a, b in zip(one, other, strict=True)]

        self.assertEqual(reduced(array("I", [1, 4]), array("I", [2, 4]), either), array("I", [3, 4]))

    def test_memoryview(self) -> None:
        """The result is bytes for bytes, and a memoryview for other items."""
        self.assertEqual(reduced(b"\x01\x05", b"\x02\x03", "max"), b"\x02\x05")
        found = reduced(memoryview(array("h", [1, 2])), array("h", [3, 4]), "sum")
        self.assertEqual((found.format, found.tolist()), ("h", [4, 6]))

    def test_formats(self) -> None:
        """Results have native C{ctypes} formats, and are bytes if Python cannot read the format."""
        kind = (ctypes.c_double * 2)(1, 2)
        self.assertEqual(alike(kind, bytearray(kind)).tolist(), [1, 2])
        other = (ctypes.c_double.__ctype_be__ * 2)(1, 2)
        self.assertEqual(alike(other, bytearray(other)), bytes(other))

    def test_invalid(self) -> None:
        """Unknown operations, sums that overflow, and objects without a usable buffer are refused."""
        self.assertRaises(InvalidRequest, Elements, b"", "xor")
        self.assertRaises(InvalidRequest, Elements, 3.5, "sum")
        self.assertRaises(InvalidRequest, Elements, (ctypes.c_double * 2)(1, 2), "sum")
        self.assertRaises(ValueError, reduced, b"\xff", b"\x01", "sum")


class NumPyTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.numpy: Any = reductions._numpy()
        if self.numpy is None:
            raise SkipTest("NumPy is not installed")

    def test_operations(self) -> None:
        """Reduced arrays have the type and shape of the input."""
        numpy = self.numpy
        one = numpy.array([[1, 5], [7, 2]], "<f4")
        for operation, function in reductions._UFUNCS.items():
            found = reduced(one, one.T.copy(), operation)
            self.assertEqual((found.dtype, found.shape), (one.dtype, one.shape))
            self.assertEqual(found.tolist(), getattr(numpy, function)(one, one.T).tolist())

    def test_types(self) -> None:
        """Complex numbers, big-endian integers and arrays without dimensions are reduced."""
        numpy = self.numpy
        for each in (
            numpy.array([1 + 2j, 3]),
            numpy.array([1, 300], ">i2"),
            numpy.array(7),
            numpy.zeros((0, 3)),
        ):
            self.assertTrue(numpy.array_equal(reduced(each, each, "sum"), each + each))

    def test_function(self) -> None:
        """A reduction function is called with arrays."""
        found = reduced(self.numpy.array([1, 4]), self.numpy.array([3, 4]), self.numpy.bitwise_xor)
        self.assertEqual(found.tolist(), [2, 0])

    def test_otherBuffers(self) -> None:
        """NumPy also reduces other buffers; arrays of Python objects are refused."""
        self.assertRaises(InvalidRequest, Elements, self.numpy.array([None]), "sum")
        self.assertEqual(reduced(array("d", [1, 2]), array("d", [3, 0]), "max"), array("d", [3, 2]))
        self.assertEqual(reduced(b"\x01\x05", b"\x02\x03", operator.add), b"\x03\x08")

    def test_formats(self) -> None:
        """Buffers with items of any format can be reduced, and have memoryviews as results."""
        kinds = (ctypes.c_int, ctypes.c_long, ctypes.c_double, ctypes.c_int.__ctype_be__)
        for kind in ((each * 2)(3, 4) for each in kinds):
            for found, expected in (
                (alike(kind, bytearray(kind)), [3, 4]),
                (reduced(kind, kind, "sum"), [6, 8]),
            ):
                self.assertIsInstance(found, memoryview)
                self.assertEqual(self.numpy.asarray(found).tolist(), expected)
        half = memoryview(self.numpy.array([1.5, 2], "f2"))
        self.assertEqual(self.numpy.asarray(reduced(half, half, "prod")).tolist(), [2.25, 4])

    def test_alike(self) -> None:
        """Received bytes become an array of the data's type; the number of rows may differ."""
        kind = self.numpy.zeros((1, 2), "i2")
        self.assertEqual(alike(kind, bytearray(8)).shape, (2, 2))
        self.assertRaises(ValueError, alike, kind, bytearray(6))
        self.assertTrue(alike(kind, bytearray(4)).flags.writeable)
