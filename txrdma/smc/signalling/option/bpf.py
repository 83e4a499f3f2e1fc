"""
The system call bpf(2): maps, programs, links to cgroups, and names in a BPF file system.

Follows bpf(2) and C{linux/bpf.h}. The C library has no wrapper, so the call is made by its number, which
depends on the architecture.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from typing_extensions import Self

from txrdma.smc.signalling.option.reasons import explained, OptionUnavailable

NUMBERS: Final[Mapping[str, int]] = {
    "x86_64": 321,
    "i386": 357,
    "i486": 357,
    "i586": 357,
    "i686": 357,
    "aarch64": 280,
    "armv6l": 386,
    "armv7l": 386,
    "armv8l": 386,
    "loongarch64": 280,
    "ppc": 361,
    "ppc64": 361,
    "ppc64le": 361,
    "riscv64": 280,
    "s390x": 351,
}
"""The number of bpf(2) by architecture, as C{uname -m} prints it."""

_MAP_CREATE, _LOOK_UP, _UPDATE, _DELETE, _PROGRAM_LOAD, _PIN, _GET = 0, 1, 2, 3, 5, 6, 7
_INFORMATION, _BTF_LOAD, _LINK_CREATE, _LINK_DETACH = 15, 18, 28, 34

_SOCK_OPS, _ATTACH_SOCK_OPS = 13, 3
_LOG_BYTES: Final = 1 << 16

ARRAY: Final = 2
SOCKET_STORAGE: Final = 24
NO_PREALLOCATION: Final = 1 << 0
CLONE: Final = 1 << 9
"""Flag of a map with socket storage: an accepted socket inherits a copy of its listener's."""
READ_ONLY: Final = 1 << 3
"""Flag of a descriptor by which the map cannot be changed."""

_INTEGER_TYPE: Final = (
    struct.pack("=HBB5I", 0xEB9F, 1, 0, 24, 0, 16, 16, 5)  # header: magic, version, flags, sizes and offsets
    + struct.pack("=4I", 1, 1 << 24, 4, 32)  # offset of the name, kind, bytes, bits
    + b"\0int\0"
)
"""Type information (Documentation/bpf/btf.rst of the kernel) with one type, an integer of 4 bytes."""

_library = ctypes.CDLL(None, use_errno=True)


def numberFor(machine: str, pointerBytes: int = struct.calcsize("P")) -> int:
    """Return bpf(2)'s number for an architecture, as C{uname -m} prints it; raises L{OptionUnavailable}."""
    if pointerBytes == 4:
        machine = {"x86_64": "i686", "aarch64": "armv7l"}.get(machine, machine)
    if machine not in NUMBERS:
        raise OptionUnavailable(f"txrdma does not know the number of bpf(2) on {machine or 'this machine'}")
    return NUMBERS[machine]


def _call(command: int, layout: str, *values: int | bytes) -> int:
    """Call bpf(2); C{layout} is the command's part of C{union bpf_attr} in the notation of L{struct}."""
    attributes = _buffer(struct.pack("=" + layout, *values))
    number = ctypes.c_long(numberFor(os.uname().machine))
    result: int = _library.syscall(number, ctypes.c_int(command), attributes, ctypes.c_uint(len(attributes)))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def _buffer(content: bytes) -> ctypes.Array[ctypes.c_char]:
    """Return memory with C{content}, without a terminating 0."""
    return ctypes.create_string_buffer(content, len(content))


class Handle:
    """A descriptor of a BPF object. The kernel frees it with its last descriptor, unless it is pinned."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def fileno(self) -> int:
        return self._descriptor

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def pin(self, path: Path) -> None:
        """Give the object a name in a BPF file system, which keeps it alive; raises L{OptionUnavailable}."""
        name = ctypes.create_string_buffer(os.fsencode(path))
        try:
            _call(_PIN, "QI", ctypes.addressof(name), self._descriptor)
        except OSError as error:
            raise explained(error, f"pin {path}") from error

    @classmethod
    def pinned(cls, path: Path, flags: int = 0) -> Self:
        """Open an object by its name; C{flags} are L{READ_ONLY} or 0. Raises OSError."""
        name = ctypes.create_string_buffer(os.fsencode(path))
        return cls(_call(_GET, "QII", ctypes.addressof(name), 0, flags))


class BPFMap(Handle):
    """
    A map from integers of 4 bytes, or sockets, to values of a fixed length.

    The kernel copies values of the map's length, whatever the size of the buffer, so any other length is
    refused. The map of another version of txrdma may have one.
    """

    _length: int | None = None

    @classmethod
    def create(
        cls, name: str, kind: int, valueBytes: int, entries: int, flags: int = 0, types: Handle | None = None
    ) -> Self:
        """
        Create a map in the kernel.

        @param name: up to 15 letters, for bpftool.
        @param types: the type of keys and values (L{loadIntegerType}), which socket storage requires.
        @raise OptionUnavailable: the kernel refuses.
        """
        typed = (0, 0, 0) if types is None else (types.fileno(), 1, 1)
        begin = kind, 4, valueBytes, entries, flags, 0, 0
        try:
            return cls(_call(_MAP_CREATE, "7I16s4I", *begin, name.encode(), 0, *typed))
        except OSError as error:
            raise explained(error, f"create the map {name}") from error

    def get(self, key: int, size: int) -> bytes:
        """Return the C{size} bytes at a key (an integer or a socket's descriptor); raises OSError."""
        self._checkLength(size)
        value = _buffer(bytes(size))
        self._element(_LOOK_UP, key, ctypes.addressof(value))
        return value.raw

    def set(self, key: int, value: bytes) -> None:
        """Set the value of a key; raises OSError."""
        self._checkLength(len(value))
        source = _buffer(value)
        self._element(_UPDATE, key, ctypes.addressof(source))

    def delete(self, key: int) -> None:
        """Remove a key and its value; raises OSError."""
        self._element(_DELETE, key, 0)

    def _checkLength(self, length: int) -> None:
        """Check that values of the map have this length; raises OSError."""
        if self._length is None:
            answer = _buffer(bytes(16))  # type, number, length of keys, length of values
            _call(_INFORMATION, "IIQ", self.fileno(), len(answer), ctypes.addressof(answer))
            self._length = int.from_bytes(answer.raw[12:], sys.byteorder)
        if length != self._length:
            raise OSError(errno.EINVAL, f"values of the map have {self._length} bytes, not {length}")

    def _element(self, command: int, key: int, valueAddress: int) -> None:
        number = ctypes.c_uint32(key)
        _call(command, "I4xQQQ", self.fileno(), ctypes.addressof(number), valueAddress, 0)


def loadIntegerType() -> Handle:
    """Load type information (BTF) with type 1, an integer of 4 bytes; raises L{OptionUnavailable}."""
    types = _buffer(_INTEGER_TYPE)
    try:
        return Handle(_call(_BTF_LOAD, "QQIII", ctypes.addressof(types), 0, len(_INTEGER_TYPE), 0, 0))
    except OSError as error:
        raise explained(error, "load type information") from error


def loadProgram(name: str, code: bytes) -> Handle:
    """
    Load a sock_ops program, which the kernel verifies.

    @param name: up to 15 letters, for bpftool.
    @raise OptionUnavailable: the kernel refuses; the message has the last lines of the verifier's log.
    """
    instructions = _buffer(code)
    licence = ctypes.create_string_buffer(b"MIT")
    log = ctypes.create_string_buffer(_LOG_BYTES)

    def load(*logging: int) -> int:
        """Load with a log level, the size and the address of the log."""
        start = ctypes.addressof(instructions), ctypes.addressof(licence)
        end = 0, 0, name.encode(), 0, _ATTACH_SOCK_OPS
        return _call(_PROGRAM_LOAD, "2I2Q2IQ2I16s2I", _SOCK_OPS, len(code) // 8, *start, *logging, *end)

    try:
        return Handle(load(0, 0, 0))
    except OSError as error:
        reason = explained(error, f"load the program {name}")
    try:
        return Handle(load(1, _LOG_BYTES, ctypes.addressof(log)))
    except OSError:
        lines = log.value.decode("utf-8", "replace").splitlines()[-12:]
        raise OptionUnavailable("\n".join([str(reason), *lines])) from None


class BPFLink(Handle):
    """The attachment of a program to a cgroup. It ends when its last descriptor and name are removed."""

    @classmethod
    def create(cls, program: Handle, cgroup: Path) -> Self:
        """
        Attach a sock_ops program to a cgroup: it is called for sockets that processes create in it, or below.

        @param cgroup: a directory of cgroup version 2.
        @raise OptionUnavailable: the cgroup can't be opened, or the kernel refuses.
        """
        try:
            target = os.open(cgroup, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise OptionUnavailable(f"can't open the cgroup {cgroup}: {error.strerror}") from error
        try:
            return cls(_call(_LINK_CREATE, "4I", program.fileno(), target, _ATTACH_SOCK_OPS, 0))
        except OSError as error:
            raise explained(error, f"attach the program to {cgroup}") from error
        finally:
            os.close(target)

    def detach(self) -> None:
        """Detach the program now; the kernel would do so after the last name was removed. Raises OSError."""
        _call(_LINK_DETACH, "I", self.fileno())

    def information(self) -> tuple[int, int]:
        """Return the program's number, and the inode of the cgroup (0 if it was removed); raises OSError."""
        layout = struct.Struct("=8xI4xQ")
        answer = _buffer(bytes(layout.size))
        _call(_INFORMATION, "IIQ", self.fileno(), layout.size, ctypes.addressof(answer))
        program, cgroup = layout.unpack(answer.raw)
        return program, cgroup
