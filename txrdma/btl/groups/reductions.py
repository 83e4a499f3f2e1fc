"""
Elements of buffers, and their reduction: by NumPy if it is installed, else by Python.
"""

from __future__ import annotations

import operator
from array import array
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any, cast, Final, TYPE_CHECKING

from txrdma.error import InvalidRequest
from txrdma.messages.memory import octets

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer as AnyBuffer  # any object with the buffer protocol

Operation = str | Callable[[Any, Any], Any]
"""
A reduction: C{sum}, C{min}, C{max}, C{prod}, or an associative and commutative function. It gets two
one-dimensional arrays of NumPy, or two memoryviews without it, and returns as many elements.
"""

_PYTHON: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "sum": operator.add,
    "min": min,
    "max": max,
    "prod": operator.mul,
}
_UFUNCS: Final = {"sum": "add", "min": "minimum", "max": "maximum", "prod": "multiply"}


@cache
def _numpy() -> Any:
    """Return NumPy, or None."""
    try:
        return import_module("numpy")
    except ImportError:
        return None


class Elements:
    """
    A copy of a member's elements, for a reduction.

    @ivar bytes: the elements as bytes, which can be changed.
    @ivar unit: length of an element in bytes.
    """

    def __init__(self, data: AnyBuffer, operation: Operation) -> None:
        """
        @param data: NumPy's array, or any contiguous buffer whose format NumPy or C{memoryview.cast} knows.
        @raise InvalidRequest: the operation or the data is not supported.
        """
        if isinstance(operation, str) and operation not in _PYTHON:
            raise InvalidRequest(f"a reduction is {', '.join(_PYTHON)} or a function, not {operation!r}")
        self._numpy, self._operation = _numpy(), operation
        self._copy = bytearray(octets(data))
        self.bytes = memoryview(self._copy)
        view = memoryview(data)
        self._data, self.unit, self._format = data, view.itemsize, cast(Any, view.format)
        if self._numpy:
            self._dtype = self._numpy.asarray(view).dtype
            if self._dtype.hasobject or self._dtype.itemsize != self.unit:
                raise InvalidRequest(f"elements of type {self._dtype} cannot be reduced")
            return
        try:
            self.bytes.cast(self._format)
        except ValueError as error:
            raise InvalidRequest(f"elements of format {self._format} need NumPy to be reduced") from error

    def combine(self, into: memoryview, other: memoryview) -> None:
        """Reduce the elements of two buffers, into the first one."""
        if not len(into):
            return
        if not self._numpy:
            self._combineByPython(into.cast(self._format), other.cast(self._format))
            return
        first = self._numpy.frombuffer(into, self._dtype)
        second = self._numpy.frombuffer(other, self._dtype)
        if isinstance(self._operation, str):
            getattr(self._numpy, _UFUNCS[self._operation])(first, second, out=first)
        else:
            first[:] = self._operation(first, second)

    def _combineByPython(self, into: Any, other: Any) -> None:
        if isinstance(self._operation, str):
            results: Any = map(_PYTHON[self._operation], into.tolist(), other)
        else:
            results = iter(list(self._operation(into, other)))
        for number in range(len(into)):
            into[number] = next(results)

    def result(self) -> Any:
        """Return the elements as an object like the data: of NumPy or C{array}, else a memoryview."""
        return alike(self._data, self._copy)


def alike(data: AnyBuffer, received: bytearray) -> Any:
    """
    Return received bytes as an object like C{data}, which uses their memory.

    @return: NumPy's array with the type and shape of C{data}, where the first dimension may differ; C{array}
        of the same type; for other buffers whose items are no bytes, a memoryview; else bytes.
    @raise ValueError: the length is no multiple of that of an element.
    """
    numpy = _numpy()
    if numpy and isinstance(data, numpy.ndarray):
        kind: Any = data
        shape = kind.shape if len(received) == kind.nbytes else (-1, *kind.shape[1:])
        return numpy.frombuffer(received, kind.dtype).reshape(shape)
    if isinstance(data, array):
        return array(data.typecode, received)
    kind = memoryview(data)
    return bytes(received) if kind.itemsize == 1 else memoryview(received).cast(kind.format)
