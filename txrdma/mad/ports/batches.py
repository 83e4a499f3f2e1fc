"""
Batches of datagrams of one length: one system call sends or receives many.

Python's sockets have C{send} and C{recv} for one at a time; these are Linux' C{sendmmsg} and C{recvmmsg}.
With ibsim they save a twelfth of the cost of a call, and a twentieth of a whole sweep.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from typing import Final

MOST: Final = 32
"""Maximum number of datagrams in one system call."""

_DONT_WAIT: Final = 0x40


class _Vector(ctypes.Structure):
    """Layout of the system's C{struct iovec}."""

    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


class _Header(ctypes.Structure):
    """Layout of the system's C{struct msghdr}."""

    _fields_ = (
        ("name", ctypes.c_void_p),
        ("nameLength", ctypes.c_uint32),
        ("vectors", ctypes.c_void_p),
        ("vectorCount", ctypes.c_size_t),
        ("control", ctypes.c_void_p),
        ("controlLength", ctypes.c_size_t),
        ("flags", ctypes.c_int),
    )


class _BatchEntry(ctypes.Structure):
    """Layout of the system's C{struct mmsghdr}."""

    _fields_ = (("header", _Header), ("length", ctypes.c_uint))


class _Messages:
    """
    Buffers for L{MOST} datagrams of one length.

    @ivar content: bytes of all datagrams, concatenated.
    @ivar lengths: received length of each.
    """

    def __init__(self, length: int) -> None:
        self.content = memoryview(bytearray(length * MOST))
        self.array = (_BatchEntry * MOST)()
        self._vectors = (_Vector * MOST)()
        self._memory = (ctypes.c_char * len(self.content)).from_buffer(self.content)
        for number in range(MOST):
            vector = self._vectors[number]
            vector.base = ctypes.addressof(self._memory) + number * length
            vector.length = length
            header = self.array[number].header
            header.vectors, header.vectorCount = ctypes.addressof(vector), 1
        numbers = memoryview(self.array).cast("B").cast("I")
        self.lengths = numbers[_BatchEntry.length.offset // 4 :: ctypes.sizeof(_BatchEntry) // 4]


_library: Final = ctypes.CDLL(None, use_errno=True)


class Batches:
    """Datagrams of one length to and from one socket."""

    def __init__(self, descriptor: int, length: int) -> None:
        self._descriptor = descriptor
        self._length = length
        self._all = [length] * MOST
        self._out, self._in = _Messages(length), _Messages(length)
        self._send, self._receive = _library.sendmmsg, _library.recvmmsg

    def send(self, datagrams: Sequence[bytes]) -> int:
        """
        Send these datagrams, L{MOST} at the most; returns how many were sent.

        @raise OSError: none was sent.
        """
        joined = b"".join(datagrams)
        self._out.content[: len(joined)] = joined
        return _checked(self._send(self._descriptor, self._out.array, len(datagrams), _DONT_WAIT))

    def receive(self) -> bytes:
        """
        Receive datagrams, concatenated, without those of another length.

        @raise OSError: there is none.
        """
        buffers = self._in
        count = _checked(self._receive(self._descriptor, buffers.array, MOST, _DONT_WAIT, None))
        length = self._length
        lengths = buffers.lengths[:count].tolist()
        if lengths == self._all[:count]:
            return bytes(buffers.content[: count * length])
        offsets = (number * length for number in range(count) if lengths[number] == length)
        return b"".join(bytes(buffers.content[at : at + length]) for at in offsets)


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
