"""
Reasons why SMC's TCP option can't be used here, and what to do about that.

See capabilities(7) and bpf(2) for who may load programs.
"""

from __future__ import annotations

import ctypes
import errno
import os
from typing import Final

from txrdma.error import RDMAError

_SYSTEM_ADMINISTRATOR, _NETWORK_ADMINISTRATOR, _BPF = 21, 12, 39
"""Capabilities, as C{linux/capability.h} numbers them."""

_VERSION_3: Final = 0x20080522
"""The version of capget(2) with 64 capabilities."""

_library = ctypes.CDLL(None, use_errno=True)


class OptionUnavailable(RDMAError):
    """SMC's TCP option can't be used here: use another carrier. The message says what is missing."""


def missingCapabilities(effective: int) -> list[str]:
    """
    Capabilities that a process lacks to load the program and attach it.

    @param effective: those that it has, a bit for each, see L{effectiveCapabilities}.
    """
    if effective >> _SYSTEM_ADMINISTRATOR & 1:
        return []
    wanted = {"CAP_BPF": _BPF, "CAP_NET_ADMIN": _NETWORK_ADMINISTRATOR}
    return [name for name, number in wanted.items() if not effective >> number & 1]


def effectiveCapabilities() -> int:
    """
    The effective capabilities of this process, a bit for each.

    By capget(2): there is no C{/proc} to ask in the directories of C{twistd --chroot}.
    """
    header = (ctypes.c_uint32 * 2)(_VERSION_3, 0)
    words = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable: low halves, then high ones
    if _library.capget(header, words) != 0:
        return 0
    return words[0] | words[3] << 32


def explain(error: OSError, deed: str, release: str, effective: int) -> OptionUnavailable:
    """
    Say what an error of bpf(2) means, and what to do.

    @param deed: what could not be done, to follow "can't".
    @param release: of the kernel, as C{uname -r}.
    @param effective: capabilities, see L{effectiveCapabilities}.
    """
    text = os.strerror(error.errno) if error.errno else str(error)
    missing = missingCapabilities(effective)
    if error.errno == errno.ENOSYS:
        why = "this kernel was built without bpf(2) (CONFIG_BPF_SYSCALL)"
    elif error.errno == errno.EPERM and missing:
        why = f"this process lacks {' and '.join(missing)}"
    elif isOlder(release):
        why = f"it takes Linux 5.10 or newer, this is {release}"
    elif error.errno == errno.EPERM:
        why = (
            f"{text}, though the capabilities are there: a container, lockdown mode, the limit of "
            "locked memory (ulimit -l, before Linux 5.11), or a program that lets no other be attached"
        )
    else:
        why = text
    return OptionUnavailable(f"can't {deed}: {why}")


def isOlder(release: str) -> bool:
    """Whether a kernel's release is one before 5.10, in which programs can't add TCP options."""
    parts = release.split(".")
    try:
        return (int(parts[0]), int("".join(filter(str.isdigit, parts[1][:3])))) < (5, 10)
    except (ValueError, IndexError):
        return False


def explained(error: OSError, deed: str) -> OptionUnavailable:
    """
    Say what an error of bpf(2) means for this process on this kernel, see L{explain}.
    """
    return explain(error, deed, os.uname().release, effectiveCapabilities())
