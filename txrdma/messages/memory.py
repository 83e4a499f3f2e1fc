"""
Names of memory that one end of a connection shares with the other.

A name is 16 bytes, as librdmacm's C{rping} sends them: address, key and length, big-endian. Applications send
it in any message; it is valid at the peer of the connection that shares the memory.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from operator import index
from pickle import PickleBuffer
from typing import Final, SupportsIndex, TYPE_CHECKING

from zope.interface import implementer

from txrdma.error import InvalidRequest
from txrdma.iba.verbs import Buffer
from txrdma.kit.wire import bits, Layout, wire
from txrdma.messages.interfaces import ISharedMemory

if TYPE_CHECKING:
    from txrdma.kit.buffers import AnyBuffer

LARGEST: Final = 1 << 30
"""Largest number of bytes of one read or write; L{txrdma.btl} has a smaller limit."""

WORD: Final = 8
"""Length of the number that an atomic operation changes, in bytes."""


@wire(16)
class MemoryName(Layout):
    """
    The name of shared memory.

    @ivar address: the address of the first byte, at the end that shares the memory; 0 for C{btl:}.
    @ivar key: the remote key, or the region number of C{btl:}.
    @ivar length: the length in bytes.
    """

    address: int = bits(64)
    key: int = bits(32)
    length: int = bits(32)

    @staticmethod
    def part(
        name: Buffer, offset: SupportsIndex, length: SupportsIndex, largest: int = LARGEST
    ) -> MemoryName:
        """
        Decode a name, which may come from a peer, and return the name of a part of this memory.

        @param largest: the largest length of one request.
        @raise InvalidRequest: the bytes are not a name, or the part is too long or not within the memory.
        @raise TypeError: the offset or the length is not an integer.
        """
        if len(name) != 16:
            raise InvalidRequest(f"the name of shared memory has 16 bytes, not {len(name)}")
        memory, offset, length = MemoryName.decode(name), index(offset), index(length)
        if offset < 0 or not 0 <= length <= memory.length - offset:
            raise InvalidRequest(
                f"{length} bytes at offset {offset} are not within shared memory of {memory.length} bytes"
            )
        if length > largest:
            raise InvalidRequest(f"a request has at most {largest} bytes, not {length}")
        if memory.address + memory.length > 1 << 64:
            raise InvalidRequest(f"{memory.length} bytes at address {memory.address:#x} are not valid memory")
        return MemoryName(address=memory.address + offset, key=memory.key, length=length)


@implementer(ISharedMemory)
class SharedMemory:
    """Memory that the peer of a connection may access: see L{ISharedMemory}."""

    __slots__ = ("_close", "name", "view")

    def __init__(self, name: MemoryName, view: memoryview, close: Callable[[], None]) -> None:
        """@param close: ends the access of the peer; idempotent."""
        self.name, self.view, self._close = name.encode(), view, close

    def __repr__(self) -> str:
        return f"<SharedMemory {MemoryName.decode(self.name)!r}>"

    def close(self) -> None:
        self._close()


def checkImmediate(immediate: object) -> None:
    """Raise InvalidRequest unless this is immediate data, a number of 32 bits, or None."""
    if immediate is not None and not (isinstance(immediate, int) and 0 <= immediate < 1 << 32):
        raise InvalidRequest(f"immediate data is a number from 0 to {(1 << 32) - 1}, not {immediate!r}")


def sharable(memory: int | AnyBuffer) -> int | memoryview:
    """
    Return a number of bytes to share, or a view of the bytes of a buffer.

    @raise InvalidRequest: the memory is empty, longer than a L{MemoryName} allows, or not contiguous.
    """
    wanted = memory if isinstance(memory, int) else memoryview(octets(memory))
    length = wanted if isinstance(wanted, int) else len(wanted)
    if not 0 < length < 1 << 32:
        raise InvalidRequest(f"shared memory has 1 to {(1 << 32) - 1} bytes, not {length}")
    return wanted


def octets(data: AnyBuffer) -> Buffer:
    """
    View a buffer as bytes, without a copy. A C{bytearray} cannot be resized while the view exists.

    @param data: an object with the buffer protocol, of any format and shape: the bytes of its items are sent
        in C order.
    @raise InvalidRequest: the object has no buffer, or the buffer is not contiguous in C order, or released.
    """
    if type(data) is bytes:
        return data
    try:
        view = memoryview(data)  # type: ignore[arg-type]  # NumPy's arrays are buffers
        if isinstance(data, PickleBuffer) and isinstance(view.obj, memoryview):  # all of which it is of
            data, view = view.obj, memoryview(view.obj)
        if view.c_contiguous:
            return _bytesOf(data, view)
    except (TypeError, ValueError, BufferError) as error:
        raise InvalidRequest(f"a buffer cannot be used: {error}") from error
    raise InvalidRequest(
        f"a buffer of shape {view.shape} cannot be used: it is not contiguous in C order, so copy it first"
    )


def _bytesOf(data: AnyBuffer, view: memoryview) -> Buffer:
    """
    View the bytes of a contiguous buffer.

    Before 3.13, CPython crashes when it collects a memory view together with a buffer that a C{PickleBuffer}
    has made from the view itself, for example with the queue of an aborted connection. So a view of a view is
    queued only if the application has passed a view.

    @param view: of C{data}.
    """
    if not view.nbytes:
        return b"" if view.readonly else bytearray()
    try:
        return view.cast("B")
    except TypeError:  # the format has several characters, as that of complex numbers
        pass
    if not isinstance(data, memoryview):
        buffer = PickleBuffer(data)  # type: ignore[arg-type]  # as above
        return buffer.raw().cast("B")  # PyPy's raw() keeps the items
    if view.readonly:
        return view.tobytes()
    return PickleBuffer((ctypes.c_char * view.nbytes).from_buffer(view)).raw().cast("B")
