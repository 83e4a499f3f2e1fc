"""
Fences between accesses of this process to memory that it shares with others.

A load or store of a C{memoryview} cast to C{'Q'} is one move. On x86 (TSO), only a load may overtake an
earlier store. Acquiring and releasing a lock is a full fence: on x86 by its locked instruction. Elsewhere
earlier accesses stay before the I{release}, and later ones behind the I{acquire}, so it takes two pairs in a
row, whose inner release and acquire can't be swapped.
"""

from __future__ import annotations

import os
import platform
import threading
from typing import Final

ORDERED: Final = platform.machine() in {"x86_64", "AMD64", "i686", "i386"}
"""Whether the processor never reorders two loads or two stores, as on x86, so that these need no fence."""

_lock = threading.Lock()
acquire = _lock.acquire
release = _lock.release


def _freed() -> None:
    """Release the lock in a forked process, where the thread that has acquired it does not exist."""
    if _lock.locked():
        _lock.release()


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_freed)


def barrier() -> None:
    """A full fence on any machine. Hot paths inline the part that their machine needs."""
    acquire()
    release()
    if not ORDERED:
        acquire()
        release()
