"""
Limits of the memory that adapters may pin for a process.

Registered memory of an adapter counts against C{RLIMIT_MEMLOCK}, C{ulimit -l}, which is 8 MiB by default for
users without privileges. A transport takes a share of that at first, so that several fit into one process.
"""

from __future__ import annotations

import resource

from txrdma.interfaces import IVerbsDevice


def mostPinned() -> int | None:
    """Return the number of bytes that this process may pin; None without a limit."""
    soft, _hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return None if soft == resource.RLIM_INFINITY else soft


def shareOf(device: IVerbsDevice, share: int) -> int | None:
    """Return one of C{share} equal shares of the bytes that may be pinned; None without a limit."""
    most = None if device.limits.hasUnlimitedInline else mostPinned()
    return None if most is None else most // share
