"""Elements of buffers, and their reduction: by NumPy if it is installed, else by Python."""

from __future__ import annotations

import operator
import sys
from array import array
from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from typing import Any, cast, Final, TYPE_CHECKING

from txrdma.error import InvalidRequest
from txrdma.messages.memory import octets

if TYPE_CHECKING:
    from txrdma.kit.buffers import AnyBuffer

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
_NATIVE: Final = "<" if sys.byteorder == "little" else ">"
_CAST: Final = frozenset("hHiIqQfdlLnN")  # formats that memoryview.cast accepts

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
    A member's elements, for a reduction.

    @ivar bytes: the elements as bytes: the member's buffer, until L{copy} is called.
    @ivar unit: length of an element in bytes.
    @ivar kind: identifies what L{view} returns: the type of NumPy that its function needs, or None.
    """

    def __init__(self, data: AnyBuffer, operation: Operation) -> None:
        """
        @param data: NumPy's array, or any contiguous buffer whose format NumPy or C{memoryview.cast} knows.
        @raise InvalidRequest: the operation or the data is not supported.
        """
        isNamed = isinstance(operation, str)
        if isNamed and operation not in _PYTHON:
            raise InvalidRequest(f"a reduction is {', '.join(_PYTHON)} or a function, not {operation!r}")
        self._numpy, self._operation, self._data = _numpy(), operation, data
        whole: Any = data  # for checkers, a NumPy array may be no buffer
        self.bytes = memoryview(octets(data))
        self._isNative = isNamed and self._numpy is not None
        self.kind: object = None
        if self._numpy:
            if self._isNative:
                self._function = getattr(self._numpy, _UFUNCS[cast(str, operation)])
            isArray = isinstance(data, self._numpy.ndarray)
            self._type = kind = cast(Any, data if isArray else self._numpy.asarray(memoryview(whole))).dtype
            self.kind = kind if self._isNative else None
            self.unit = kind.itemsize
            if kind.hasobject or (not isArray and self.unit != memoryview(whole).itemsize):
                raise InvalidRequest(f"elements of type {kind} cannot be reduced")
            return
        view = memoryview(whole)
        self.unit, self._type = view.itemsize, view.format
        try:
            self.bytes.cast(self._type)
        except ValueError as error:
            raise InvalidRequest(f"elements of format {self._type} need NumPy to be reduced") from error

    def copy(self) -> None:
        """Copy the elements, so that the member's buffer can be changed, and C{bytes} as well."""
        self.bytes = memoryview(bytearray(self.bytes))

    def overlaps(self, other: memoryview) -> bool:
        """Return whether the member's buffer may share memory with another one."""
        if not self._numpy or not len(other):
            return True
        first, second = (self._numpy.frombuffer(each, "u1") for each in (self.bytes, other))
        return bool(self._numpy.may_share_memory(first, second))

    def view(self, part: memoryview) -> Any:
        """Return a buffer as L{reduce} needs it, for any elements of this C{kind}."""
        return self._numpy.frombuffer(part, self._type) if self._isNative and len(part) else part

    def reduce(self, views: Sequence[Any], into: memoryview) -> None:
        """
        Reduce the elements of buffers, which other processes may change at any time, into another one.

        @param views: of at least two buffers, which are reduced in this order.
        """
        if not len(into):
            return
        if self._isNative:
            function = self._function
            result = self._numpy.frombuffer(into, self._type)
            function(views[0], views[1], out=result)
            for each in views[2:]:
                function(result, each, out=result)
            return
        into[:] = views[0]
        for each in views[1:]:
            self.combine(into, memoryview(bytearray(each)))

    def combine(self, into: memoryview, other: memoryview) -> None:
        """Reduce the elements of two buffers, into the first one."""
        if not len(into):
            return
        if not self._numpy:
            self._combineByPython(into.cast(self._type), other.cast(self._type))
            return
        first = self._numpy.frombuffer(into, self._type)
        second = self._numpy.frombuffer(other, self._type)
        if self._isNative:
            self._function(first, second, out=first)
        else:
            first[:] = cast(Any, self._operation)(first, second)

    def _combineByPython(self, into: Any, other: Any) -> None:
        if isinstance(self._operation, str):
            results: Any = map(_PYTHON[self._operation], into.tolist(), other)
        else:
            results = iter(list(self._operation(into, other)))
        for number in range(len(into)):
            into[number] = next(results)

    def result(self, reduced: memoryview | None = None) -> Any:
        """
        Return elements as an object like the data: of NumPy or C{array}, else a memoryview.

        @param reduced: bytes of a C{bytearray}; None: those of this object, which have been copied.
        """
        found = self.bytes if reduced is None else reduced
        return alike(self._data, cast(bytearray, found.obj))


def alike(data: AnyBuffer, received: bytearray) -> Any:
    """
    Return received bytes as an object like C{data}, which uses their memory.

    @return: NumPy's array with the type and shape of C{data}, where the first dimension may differ; C{array}
        of the same type; for other buffers whose items are not bytes, a memoryview of such items, or of bytes
        if only NumPy could read them and is not installed; else bytes.
    @raise ValueError: the length is not a multiple of an element's.
    """
    numpy = _numpy()
    if numpy and isinstance(data, numpy.ndarray):
        kind: Any = data
        shape = kind.shape if len(received) == kind.nbytes else (-1, *kind.shape[1:])
        return numpy.frombuffer(received, kind.dtype).reshape(shape)
    if isinstance(data, array):
        return array(data.typecode, received)
    kind = memoryview(cast(Any, data))
    if kind.itemsize == 1:
        return bytes(received)
    view = memoryview(received)
    form = kind.format.removeprefix(_NATIVE)  # formats of ctypes begin with it; casts do not accept it
    if form in _CAST:
        return view.cast(form)
    return memoryview(numpy.frombuffer(received, numpy.asarray(kind).dtype)) if numpy else view
