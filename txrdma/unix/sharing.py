"""
Whether processes of this machine can share memory: eventfd(2), memfd_create(2) with seals.

Python has them on Linux only, PyPy lacks some, and seccomp profiles may deny the system calls.
"""

from __future__ import annotations

import errno
import fcntl
import os
from functools import lru_cache
from typing import Final

_NEEDED: Final = (
    (os, "eventfd"),
    (os, "memfd_create"),
    (os, "MFD_ALLOW_SEALING"),
    (fcntl, "F_ADD_SEALS"),
)


@lru_cache(1)
def whyNoSharedMemory() -> str:
    """
    Return why memory can't be shared, and what to do about it; empty if it can. The answer is cached.

    @raise OSError: the answer cannot be determined now, for example without a free descriptor.
    """
    for module, name in _NEEDED:
        if not hasattr(module, name):
            return f"this Python has no {module.__name__}.{name}: use CPython on Linux"
    name = "eventfd2"
    try:
        os.close(os.eventfd(0, os.EFD_CLOEXEC))
        name = "memfd_create"
        os.close(os.memfd_create("txrdma", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EACCES, errno.ENOSYS):
            raise
        return f"the system call {name} fails ({error}): allow it in the seccomp profile of this process"
    return ""
