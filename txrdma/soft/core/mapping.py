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
Descriptors from this number on keep none in their mapping: the process has many. That costs two system calls.
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
