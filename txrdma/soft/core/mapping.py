"""
Mappings of memory files, which keep no descriptor where there are many of them.

Until Python 3.13 C{mmap} keeps a duplicate of the descriptor that it maps for as long as the mapping lives:
ten thousand connections would need twenty thousand of these, for nothing.
"""

from __future__ import annotations

import mmap
import sys
from typing import Final

PLAIN: Final = 128
"""
The number from which on a descriptor tells that a process has many: its mapping keeps none then.

Descriptors get the lowest number that is free. To do without one takes two more system calls, and C{ctypes},
5 ms to be imported.
"""


def mapped(descriptor: int, length: int, isWritable: bool = True) -> mmap.mmap:
    """Map the first bytes (whole pages) of a file, whose descriptor may be closed then; raises OSError."""
    protection = mmap.PROT_READ | (mmap.PROT_WRITE if isWritable else 0)
    if sys.version_info >= (3, 13):
        return mmap.mmap(descriptor, length, prot=protection, trackfd=False)
    if descriptor < PLAIN:
        return mmap.mmap(descriptor, length, prot=protection)
    from txrdma.soft.core._overlay import overlaid

    return overlaid(descriptor, length, protection)
