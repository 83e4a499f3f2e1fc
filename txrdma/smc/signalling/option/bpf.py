"""
The system call bpf(2): maps, a program, its link to a cgroup, and names for them in a bpffs.

Follows bpf(2) and C{linux/bpf.h}. The C library has no function for it, so it is called by its number, which
differs between kinds of machines.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from typing_extensions import Self

from txrdma.smc.signalling.option._btf import encodeTypes
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
"""The number of bpf(2) by what C{uname -m} says."""

_MAP_CREATE, _LOOK_UP, _UPDATE, _DELETE, _PROGRAM_LOAD, _PIN, _GET = 0, 1, 2, 3, 5, 6, 7
_INFORMATION, _BTF_LOAD, _LINK_CREATE, _LINK_DETACH = 15, 18, 28, 34

_SOCK_OPS, _ATTACH_SOCK_OPS = 13, 3
_LOG_BYTES: Final = 1 << 16

ARRAY: Final = 2
SOCKET_STORAGE: Final = 24
NO_PREALLOCATION: Final = 1 << 0
CLONE: Final = 1 << 9
"""Flag of a map with sockets' storage: an accepted socket has a copy of its listener's."""
READ_ONLY: Final = 1 << 3
"""Flag for a descriptor: its owner can't change the map."""


class _Attributes(ctypes.Structure):
    """The argument of one command: a part of C{union bpf_attr}."""


class _MapCreate(_Attributes):
    _fields_ = [
        ("type", ctypes.c_uint32),
        ("keyBytes", ctypes.c_uint32),
        ("valueBytes", ctypes.c_uint32),
        ("entries", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
        ("inner", ctypes.c_uint32),
        ("node", ctypes.c_uint32),
        ("name", ctypes.c_char * 16),
        ("interface", ctypes.c_uint32),
        ("btf", ctypes.c_uint32),
        ("keyType", ctypes.c_uint32),
        ("valueType", ctypes.c_uint32),
    ]


class _Element(_Attributes):
    _fields_ = [
        ("map", ctypes.c_uint32),
        ("padding", ctypes.c_uint32),
        ("key", ctypes.c_uint64),
        ("value", ctypes.c_uint64),
        ("flags", ctypes.c_uint64),
    ]


class _ProgramLoad(_Attributes):
    _fields_ = [
        ("type", ctypes.c_uint32),
        ("instructions", ctypes.c_uint32),
        ("code", ctypes.c_uint64),
        ("license", ctypes.c_uint64),
        ("logLevel", ctypes.c_uint32),
        ("logBytes", ctypes.c_uint32),
        ("log", ctypes.c_uint64),
        ("kernelVersion", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
        ("name", ctypes.c_char * 16),
        ("interface", ctypes.c_uint32),
        ("attachType", ctypes.c_uint32),
    ]


class _Object(_Attributes):
    _fields_ = [
        ("path", ctypes.c_uint64),
        ("descriptor", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
    ]


class _BTFLoad(_Attributes):
    _fields_ = [
        ("btf", ctypes.c_uint64),
        ("log", ctypes.c_uint64),
        ("btfBytes", ctypes.c_uint32),
        ("logBytes", ctypes.c_uint32),
        ("logLevel", ctypes.c_uint32),
    ]


class _LinkCreate(_Attributes):
    _fields_ = [
        ("program", ctypes.c_uint32),
        ("target", ctypes.c_uint32),
        ("attachType", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
    ]


class _LinkDetach(_Attributes):
    _fields_ = [("link", ctypes.c_uint32)]


class _Ask(_Attributes):
    _fields_ = [
        ("descriptor", ctypes.c_uint32),
        ("bytes", ctypes.c_uint32),
        ("information", ctypes.c_uint64),
    ]


class _LinkInformation(ctypes.Structure):
    _fields_ = [
        ("type", ctypes.c_uint32),
        ("id", ctypes.c_uint32),
        ("program", ctypes.c_uint32),
        ("cgroup", ctypes.c_uint64),
        ("attachType", ctypes.c_uint32),
    ]


_library = ctypes.CDLL(None, use_errno=True)


def numberFor(machine: str, pointerBytes: int = struct.calcsize("P")) -> int:
    """
    The number of bpf(2) on a kind of machine.

    @param machine: what C{uname -m} says.
    @param pointerBytes: of a pointer in this process, which may be of 32 bits on a machine of 64.
    @raise OptionUnavailable: it is not known.
    """
    if machine == "x86_64" and pointerBytes == 4:
        machine = "i686"
    if machine == "aarch64" and pointerBytes == 4:
        machine = "armv7l"
    if machine not in NUMBERS:
        raise OptionUnavailable(f"the number of bpf(2) on {machine or 'this machine'} is not known to txrdma")
    return NUMBERS[machine]


_number: Final = NUMBERS.get(platform.machine(), 0) and numberFor(platform.machine())


def _call(command: int, attributes: _Attributes) -> int:
    """
    Call bpf(2).

    @raise OSError: as the kernel has it.
    """
    number = _number or numberFor(platform.machine())
    result: int = _library.syscall(
        ctypes.c_long(number), ctypes.c_int(command), ctypes.byref(attributes), ctypes.sizeof(attributes)
    )
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


class Handle:
    """A descriptor of an object of BPF. The object ends with its last one, unless it is pinned."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def fileno(self) -> int:
        """The descriptor; -1 when closed."""
        return self._descriptor

    def close(self) -> None:
        """Close the descriptor. Twice is fine."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def pin(self, path: Path) -> None:
        """
        Give the object a name in a bpffs, which keeps it until that is removed.

        @raise OptionUnavailable: it can't be done.
        """
        name = ctypes.create_string_buffer(os.fsencode(path))
        try:
            _call(_PIN, _Object(ctypes.addressof(name), self._descriptor, 0))
        except OSError as error:
            raise explained(error, f"pin {path}") from error

    @classmethod
    def pinned(cls, path: Path, flags: int = 0) -> Self:
        """
        Open an object by its name in a bpffs.

        @param flags: L{READ_ONLY}, or 0.
        @raise OSError: there is none, or this user may not.
        """
        name = ctypes.create_string_buffer(os.fsencode(path))
        return cls(_call(_GET, _Object(ctypes.addressof(name), 0, flags)))


class BPFMap(Handle):
    """A map: numbers of 4 bytes, or sockets, to values of a fixed length."""

    @classmethod
    def create(
        cls, name: str, kind: int, valueBytes: int, entries: int, flags: int = 0, typed: BTF | None = None
    ) -> Self:
        """
        Make a map in the kernel.

        @param name: up to 15 letters, for bpftool.
        @param typed: the type of keys and values, which storage of sockets insists on.
        @raise OptionUnavailable: it can't be done.
        """
        attributes = _MapCreate(kind, 4, valueBytes, entries, flags, 0, 0, name.encode())
        if typed is not None:
            attributes.btf, attributes.keyType, attributes.valueType = typed.fileno(), 1, 1
        try:
            return cls(_call(_MAP_CREATE, attributes))
        except OSError as error:
            raise explained(error, f"make the map {name}") from error

    def get(self, key: int, size: int) -> bytes:
        """
        The value of a key.

        @param key: a number, or the descriptor of a socket.
        @param size: the length of values.
        @raise OSError: there is no such value (ENOENT).
        """
        value = ctypes.create_string_buffer(size)
        self._element(_LOOK_UP, key, value)
        return value.raw

    def set(self, key: int, value: bytes) -> None:
        """
        Give a key a value.

        @raise OSError: the kernel refuses it.
        """
        self._element(_UPDATE, key, ctypes.create_string_buffer(value, len(value)))

    def delete(self, key: int) -> None:
        """
        Remove a key with its value.

        @raise OSError: there is none (ENOENT), or it can't be removed.
        """
        self._element(_DELETE, key, None)

    def _element(self, command: int, key: int, value: ctypes.Array[ctypes.c_char] | None) -> None:
        number = ctypes.c_uint32(key)
        where = 0 if value is None else ctypes.addressof(value)
        _call(command, _Element(self.fileno(), 0, ctypes.addressof(number), where, 0))


class BTF(Handle):
    """Type information that the kernel has taken."""

    @classmethod
    def load(cls) -> Self:
        """
        Hand the description of an integer, L{encodeTypes}, to the kernel.

        @raise OptionUnavailable: it can't be done.
        """
        types = encodeTypes()
        held = ctypes.create_string_buffer(types, len(types))
        try:
            return cls(_call(_BTF_LOAD, _BTFLoad(ctypes.addressof(held), 0, len(types), 0, 0)))
        except OSError as error:
            raise explained(error, "load type information") from error


class Program(Handle):
    """A sock_ops program that the kernel has verified."""

    @classmethod
    def load(cls, name: str, code: bytes) -> Self:
        """
        Have the kernel verify and load a program.

        @param name: up to 15 letters, for bpftool.
        @raise OptionUnavailable: it can't be done; if the verifier objects the message has its last lines.
        """
        held = ctypes.create_string_buffer(code, len(code))
        terms = ctypes.create_string_buffer(b"MIT")
        log = ctypes.create_string_buffer(_LOG_BYTES)
        attributes = _ProgramLoad(
            _SOCK_OPS, len(code) // 8, ctypes.addressof(held), ctypes.addressof(terms), 0, 0, 0, 0, 0
        )
        attributes.name, attributes.attachType = name.encode(), _ATTACH_SOCK_OPS
        try:
            return cls(_call(_PROGRAM_LOAD, attributes))
        except OSError as error:
            reason = explained(error, f"load the program {name}")
        attributes.logLevel, attributes.logBytes, attributes.log = 1, _LOG_BYTES, ctypes.addressof(log)
        try:
            return cls(_call(_PROGRAM_LOAD, attributes))
        except OSError:
            lines = log.value.decode("utf-8", "replace").splitlines()[-12:]
            raise OptionUnavailable("\n".join([str(reason), *lines])) from None


class Link(Handle):
    """A program's being attached to a cgroup: it ends when nobody has a descriptor or name of it any more."""

    @classmethod
    def create(cls, program: Program, cgroup: Path) -> Self:
        """
        Attach a program to a cgroup, for sockets that its processes, and those of cgroups below, have opened.

        @param cgroup: a directory of cgroup version 2.
        @raise OptionUnavailable: it can't be done.
        """
        try:
            target = os.open(cgroup, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise OptionUnavailable(f"can't open the cgroup {cgroup}: {error.strerror}") from error
        try:
            return cls(_call(_LINK_CREATE, _LinkCreate(program.fileno(), target, _ATTACH_SOCK_OPS, 0)))
        except OSError as error:
            raise explained(error, f"attach the program to {cgroup}") from error
        finally:
            os.close(target)

    def detach(self) -> None:
        """
        Take the program off its cgroup now; a link that merely loses its last name does so some time later.

        @raise OSError: the kernel refuses.
        """
        _call(_LINK_DETACH, _LinkDetach(self.fileno()))

    def information(self) -> tuple[int, int]:
        """
        The number of the program, and that of the cgroup: its inode; 0 when the cgroup is gone.

        @raise OSError: the kernel does not say it.
        """
        told = _LinkInformation()
        _call(_INFORMATION, _Ask(self.fileno(), ctypes.sizeof(told), ctypes.addressof(told)))
        return told.program, told.cgroup
