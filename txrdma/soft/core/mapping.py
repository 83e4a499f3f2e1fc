"""
Mappings of memory files, which keep no descriptor if there are many of them.

Before Python 3.13, an C{mmap} object keeps a duplicate of the mapped descriptor until it is closed: ten
thousand connections would need twenty thousand unused descriptors.
"""

from __future__ import annotations

import mmap
import sys
from typing import Final

PLAIN: Final = 128
"""
Mappings of descriptors from this number on keep no descriptor, which costs two system calls.
"""


def mapped(descriptor: int, length: int, isWritable: bool = True) -> mmap.mmap:
    """
    Map the first bytes (whole pages) of a file. Its descriptor may be closed afterwards. Raises OSError.
    """
    protection = mmap.PROT_READ | (mmap.PROT_WRITE if isWritable else 0)
    if sys.version_info >= (3, 13):
        return mmap.mmap(descriptor, length, prot=protection, trackfd=False)
    if descriptor < PLAIN:
        return mmap.mmap(descriptor, length, prot=protection)
    from txrdma.soft.core._overlay import overlaid

    return overlaid(descriptor, length, protection)
