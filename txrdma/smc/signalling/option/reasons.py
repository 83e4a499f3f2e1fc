"""Errors of bpf(2) with the reason and what to do, such as missing capabilities (see capabilities(7))."""

from __future__ import annotations

import ctypes
import errno
import os
from typing import Final

from txrdma.error import RDMAError

_SYSTEM_ADMINISTRATOR, _NETWORK_ADMINISTRATOR, _BPF = 21, 12, 39
"""Capabilities of C{linux/capability.h}."""

_VERSION_3: Final = 0x20080522
"""Version of capget(2) with 64 capabilities."""

_library = ctypes.CDLL(None, use_errno=True)


class OptionUnavailable(RDMAError):
    """SMC's TCP option can't be used. The message names what is missing; other carriers may be available."""


def missingCapabilities(effective: int) -> list[str]:
    """Return the capabilities that a process lacks for loading and attaching the program."""
    if effective >> _SYSTEM_ADMINISTRATOR & 1:
        return []
    required = {"CAP_BPF": _BPF, "CAP_NET_ADMIN": _NETWORK_ADMINISTRATOR}
    return [name for name, number in required.items() if not effective >> number & 1]


def effectiveCapabilities() -> int:
    """Return the effective capabilities of this process, by capget(2), since C{/proc} may be hidden."""
    header = (ctypes.c_uint32 * 2)(_VERSION_3, 0)
    words = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable: low halves, then high ones
    if _library.capget(header, words) != 0:
        return 0
    return words[0] | words[3] << 32


def explained(
    error: OSError, action: str, release: str | None = None, effective: int | None = None
) -> OptionUnavailable:
    """
    Return an exception that explains an error of bpf(2).

    @param action: the action that failed, to follow "can't".
    @param release: the kernel's release; by default that of the running kernel.
    @param effective: capabilities; by default L{effectiveCapabilities}.
    """
    release = os.uname().release if release is None else release
    text = os.strerror(error.errno) if error.errno else str(error)
    missing = missingCapabilities(effectiveCapabilities() if effective is None else effective)
    if error.errno == errno.ENOSYS:
        why = "this kernel was built without bpf(2) (CONFIG_BPF_SYSCALL)"
    elif error.errno == errno.EPERM and missing:
        why = f"this process lacks {' and '.join(missing)}"
    elif isOlder(release):
        why = f"this requires Linux 5.10 or newer, and the kernel is {release}"
    elif error.errno == errno.EPERM:
        why = (
            f"{text} despite the capabilities: possible reasons are a container, lockdown mode, the limit of "
            "locked memory (ulimit -l, before Linux 5.11), or an attached program that excludes others"
        )
    else:
        why = text
    return OptionUnavailable(f"can't {action}: {why}")


def isOlder(release: str) -> bool:
    """Return whether a kernel is older than 5.10, in which programs can't add TCP options."""
    parts = release.split(".")
    try:
        return (int(parts[0]), int("".join(filter(str.isdigit, parts[1][:3])))) < (5, 10)
    except (ValueError, IndexError):
        return False
