"""Mappings of files by C{mmap} objects that do not duplicate the file's descriptor."""

from __future__ import annotations

import ctypes
import mmap
import os
from typing import Final

_FIXED: Final = 0x10
"""The flag MAP_FIXED of mmap(2): map at exactly this address, and replace an existing mapping."""


class _Buffer(ctypes.Structure):
    """A C{Py_buffer}, which C{PyObject_GetBuffer} fills in."""

    _fields_ = (
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.py_object),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    )


_getBuffer = ctypes.pythonapi.PyObject_GetBuffer
_getBuffer.argtypes = (ctypes.py_object, ctypes.POINTER(_Buffer), ctypes.c_int)
_release = ctypes.pythonapi.PyBuffer_Release
_release.argtypes = (ctypes.POINTER(_Buffer),)
_release.restype = None
_mmap = ctypes.CDLL(None, use_errno=True).mmap
_mmap.argtypes = (
    *(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long),
)
_mmap.restype = ctypes.c_void_p


def overlaid(descriptor: int, length: int, protection: int) -> mmap.mmap:
    """
    Map the first bytes of a file over an C{mmap} object of anonymous memory, which has no descriptor.

    @param length: bytes, whole pages.
    @param protection: C{mmap.PROT_READ}, C{mmap.PROT_WRITE}.
    @raise OSError: the file can't be mapped.
    """
    mapping = mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=protection)
    buffer = _Buffer()
    _getBuffer(mapping, buffer, 0)
    where = buffer.buf
    found = _mmap(where, length, protection, mmap.MAP_SHARED | _FIXED, descriptor, 0)
    error = ctypes.get_errno()
    _release(buffer)
    if found != where:
        mapping.close()
        raise OSError(error, os.strerror(error))
    return mapping
