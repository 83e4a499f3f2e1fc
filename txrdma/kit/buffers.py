"""Types of arguments for static checkers: objects whose bytes are sent, and those that receive bytes."""

from __future__ import annotations

from typing import Any, Protocol, TYPE_CHECKING, Union


class NumPyArray(Protocol):
    """A NumPy array, of which checkers know only for Python 3.12 and later that it is a buffer."""

    @property
    def __array_interface__(self) -> dict[str, Any]: ...


if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

    AnyBuffer = Union[ReadableBuffer, NumPyArray]
    """An object with the buffer protocol."""

    WritableBuffer = Union[WriteableBuffer, NumPyArray]
    """An object with the buffer protocol that is writable."""
