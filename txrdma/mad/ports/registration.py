"""
Registration of agents at C{/dev/infiniband/umadN}, for the requests that the kernel is to deliver.

Follows the kernel's user space interface, version 5. The older system call is for kernels before 3.19.
"""

from __future__ import annotations

import errno
import platform
import sys
from fcntl import ioctl
from struct import calcsize, Struct
from typing import Final

_THREE_BITS: Final = ("ppc", "powerpc", "mips", "sparc", "alpha")
"""Machines with three bits for the direction, of which one means none, and fewer for the size."""

_EXCHANGED: Final = ("parisc", "hppa")
"""Machines on which the bits for the direction have the opposite meaning."""

_REGISTER2: Final = Struct("=IIBBHIQQIB3x")
_REGISTER: Final = Struct(f"=I{'2Q' if calcsize('@L') == 8 else '4I'}BBB3sBx")
_LONG_BITS: Final = 8 * calcsize("@L")
_UNREGISTER: Final = Struct("=I")


def ioctlNumber(direction: int, number: int, size: int, machine: str = platform.machine()) -> int:
    """
    Number of an ioctl of umad.

    @param direction: 1 if the program passes data to the kernel, 2 if the kernel returns data, 3 for both.
    """
    gives, takes = direction & 1, direction >> 1
    if machine.startswith(_THREE_BITS):
        bits = (gives << 2 | takes << 1 or 1) << 29
    elif machine.startswith(_EXCHANGED):
        bits = (gives << 1 | takes) << 30
    else:
        bits = (takes << 1 | gives) << 30
    return bits | size << 16 | 0x1B << 8 | number


REGISTER_AGENT: Final = ioctlNumber(3, 1, _REGISTER.size)
UNREGISTER_AGENT: Final = ioctlNumber(1, 2, _UNREGISTER.size)
ENABLE_PKEY: Final = ioctlNumber(0, 3, 0)
REGISTER_AGENT2: Final = ioctlNumber(3, 4, _REGISTER2.size)


class Registry:
    """Agents that are registered with the kernel on one open device."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._isNew: bool | None = None

    def register(
        self, qpn: int, managementClass: int, classVersion: int, methods: int, oui: int, rmpp: bool
    ) -> int:
        """
        Register an agent with the kernel; returns its number.

        @param methods: a bit for each method whose requests it receives; 0 for responses only.
        @param rmpp: the kernel segments and reassembles RMPP transfers.
        @raise OSError: the kernel refuses it.
        """
        if self._isNew is not False:
            try:
                number = self._register2(qpn, managementClass, classVersion, methods, oui, rmpp)
                self._isNew = True
                return number
            except OSError as error:
                if self._isNew or error.errno != errno.ENOTTY:
                    raise
            ioctl(self._fd, ENABLE_PKEY)  # before anything else, or headers are the short ones
            self._isNew = False
        return self._register(qpn, managementClass, classVersion, methods, oui, rmpp)

    def unregister(self, number: int) -> None:
        """End the registration of an agent; raise C{OSError} if the kernel refuses it."""
        ioctl(self._fd, UNREGISTER_AGENT, bytearray(_UNREGISTER.pack(number)))

    def _register2(self, qpn: int, kind: int, version: int, methods: int, oui: int, rmpp: bool) -> int:
        masks = methods & 0xFFFFFFFFFFFFFFFF, methods >> 64
        asked = bytearray(_REGISTER2.pack(0, qpn, kind, version, 0, 0, *masks, oui, rmpp))
        ioctl(self._fd, REGISTER_AGENT2, asked, True)
        return int.from_bytes(asked[:4], sys.byteorder)

    def _register(self, qpn: int, kind: int, version: int, methods: int, oui: int, rmpp: bool) -> int:
        masks = (methods >> shift & (1 << _LONG_BITS) - 1 for shift in range(0, 128, _LONG_BITS))
        asked = bytearray(_REGISTER.pack(0, *masks, qpn, kind, version, oui.to_bytes(3, "big"), rmpp))
        ioctl(self._fd, REGISTER_AGENT, asked, True)
        return int.from_bytes(asked[:4], sys.byteorder)
