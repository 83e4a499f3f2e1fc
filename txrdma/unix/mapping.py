"""
Memory files, their mappings, and how many descriptors new memory must leave to others.

Mappings keep no descriptor if there are many of them: before Python 3.13, an C{mmap} object keeps a duplicate
of the mapped descriptor until it is closed, so ten thousand connections would need twenty thousand unused
descriptors.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import resource
import sys
from typing import Final

SIZE_SEALS: Final = 0x06
"""C{F_SEAL_SHRINK} and C{F_SEAL_GROW}, which PyPy's C{fcntl} does not have."""

KEPT_BELOW: Final = 128
"""
Mappings of descriptors below this number, and below a quarter of the process's limit, keep a duplicate: to
map without one costs two system calls, and PyPy can't do it.
"""

SPARE: Final = 16
"""
The least number of descriptors that L{sealedMemory} can leave to others, at most a quarter of the process's
limit.
"""

SPARE_SHARE: Final = 6
"""
It leaves at least this share of the limit, a sixth: with shared memory, 14 C{rsocket:} connections need two
more descriptors once they are used, for the doorbells of both ends.
"""


def mapped(descriptor: int, length: int, isWritable: bool = True) -> mmap.mmap:
    """
    Map the first bytes of a file, whose descriptor may be closed afterwards.

    @param length: number of bytes, a multiple of the page size.
    @raise OSError: there is no memory, mapping or descriptor left.
    """
    protection = mmap.PROT_READ | (mmap.PROT_WRITE if isWritable else 0)
    if sys.version_info >= (3, 13):
        return mmap.mmap(descriptor, length, prot=protection, trackfd=False)
    if descriptor < min(KEPT_BELOW, _limit() // 4) or sys.implementation.name == "pypy":
        return mmap.mmap(descriptor, length, prot=protection)
    from txrdma.unix._overlay import overlaid

    return overlaid(descriptor, length, protection)


def _limit() -> int:
    """Return the maximum number of descriptors of this process."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return sys.maxsize if limit == resource.RLIM_INFINITY else limit


def _checkSpare(descriptor: int) -> None:
    """Raise OSError if too few numbers follow a new descriptor, which has the least free one."""
    limit = _limit()
    spare = max(min(SPARE, limit // 4), limit // SPARE_SHARE)
    if descriptor >= limit - spare:
        raise OSError(errno.EMFILE, f"{os.strerror(errno.EMFILE)} (the last {spare} of {limit} are reserved)")


def sealedMemory(name: str, length: int, seals: int = 0, isSparing: bool = False) -> tuple[int, mmap.mmap]:
    """
    Make a memfd whose size is sealed, since access would raise SIGBUS if a peer could shrink it.

    Processes of other users cannot open it again, for example to write to memory that they may only read.

    @param seals: further seals, which affect other mappings only; a kernel that does not support them omits
        them.
    @param isSparing: whether to leave L{SPARE} or more descriptors to others, for example to those who share
        the memory with another process.
    @return: descriptor and mapping.
    @raise OSError: there is not enough memory, or no descriptor.
    """
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        if isSparing:
            _checkSpare(descriptor)
        os.fchmod(descriptor, 0o600)
        os.ftruncate(descriptor, length)
        mapping = mapped(descriptor, length)
        sizeIsFixed = SIZE_SEALS | fcntl.F_SEAL_SEAL
        try:
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, sizeIsFixed | seals)
        except OSError as error:
            if error.errno != errno.EINVAL or not seals:
                raise
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, sizeIsFixed)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor, mapping


def sealedLength(descriptor: int) -> int:
    """Return the size of a peer's sealed memory; raise ValueError if access could raise SIGBUS."""
    try:
        seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
    except OSError:
        raise ValueError("not a memfd") from None
    if seals & SIZE_SEALS != SIZE_SEALS:
        raise ValueError("the memory is not sealed against changes of its size")
    # Holes in the pages of hugetlbfs, which seals allow, may be filled by SIGBUS. The block size of fstat is
    # that of transparent huge pages where the system uses these for shared memory (shmem_enabled).
    if os.fstatvfs(descriptor).f_bsize != mmap.PAGESIZE:
        raise ValueError("the memory has pages of another size")
    return os.fstat(descriptor).st_size


def releaseView(view: memoryview) -> None:
    """Release a view, now or when the last object that uses it is deleted, such as a NumPy array."""
    try:
        view.release()
    except BufferError:
        pass  # the last of these objects releases the memory


def closeMapping(mapping: mmap.mmap) -> None:
    """
    Unmap memory, now or when its last view is released.

    PyPy's C{close} ignores views, which would be empty afterwards, so its garbage collector unmaps.
    """
    if sys.implementation.name == "pypy":
        return
    try:
        mapping.close()
    except BufferError:
        pass  # the last view unmaps it
