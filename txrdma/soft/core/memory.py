"""
Memory regions, their keys, and the checks that every access goes through.

Follows InfiniBand Architecture vol. 1, 10.6 (memory management) and 10.2.3 (protection domains).

Theory of operation. A key is random, is both L_Key and R_Key, and identifies a region in the table of the
device. The key of a closed region is not assigned again until L{_KEYS_REMEMBERED} more are closed. Every
access has a key, an address and a length: it is permitted if the region belongs to the protection domain of
the queue pair, contains all bytes, and has the rights; an access of no bytes always is. Addresses are not
those of the process. They are assigned with holes between regions, so that an access beyond the end of one
region does not reach another.

On Linux, memory that is allocated with rights of peers is in a memfd, which their processes can map. A word
behind it is 1 while the region is valid: L{Region.close} clears it, and peers check it before each access.
"""

from __future__ import annotations

import mmap
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from secrets import randbits
from typing import Final

from zope.interface import implementer

from txrdma.error import InvalidRequest, ProtectionError, ResourceExhausted
from txrdma.iba.types import LKey, RKey
from txrdma.iba.verbs import Access, Buffer, Segment
from txrdma.interfaces import IMemoryRegion
from txrdma.kit.logs import advised
from txrdma.soft.core.recent import RecentNumbers
from txrdma.unix.mapping import closeMapping, releaseView, sealedMemory
from txrdma.unix.sharing import whyNoSharedMemory

PAGE: Final = mmap.PAGESIZE
_REMOVE: Final[int | None] = getattr(mmap, "MADV_REMOVE", None)  # Linux has it

# Plain integers for the hot path: the operators of an IntFlag cost ten times as much.
LOCAL_WRITE: Final = int(Access.LOCAL_WRITE)
REMOTE_WRITE: Final = int(Access.REMOTE_WRITE)
REMOTE_READ: Final = int(Access.REMOTE_READ)
REMOTE_ATOMIC: Final = int(Access.REMOTE_ATOMIC)
_REMOTE: Final = REMOTE_WRITE | REMOTE_READ | REMOTE_ATOMIC
_ALL_RIGHTS: Final = LOCAL_WRITE | REMOTE_WRITE | REMOTE_READ | REMOTE_ATOMIC

_EMPTY: Final = memoryview(bytearray())
_FIRST_ADDRESS: Final = 0x1000_0000_0000
_KEYS_REMEMBERED: Final = 4096
_VALID: Final = (1).to_bytes(8, sys.byteorder)


class Domain:
    """A protection domain: keys of one are not valid in another (IBA 10.2.3)."""


@implementer(IMemoryRegion)
class Region:
    """
    Registered memory.

    @ivar descriptor: the memfd of memory that can be shared with other processes.
    @ivar validOffset: offset of the valid word in the memfd, alone on its last page: a C{u64} of 1 until
        C{close}, then 0.
    @ivar rights: C{access} as a plain integer.
    """

    __slots__ = (
        "__weakref__",
        "_mapping",
        "_table",
        "access",
        "address",
        "descriptor",
        "domain",
        "length",
        "lkey",
        "rights",
        "rkey",
        "valid",
        "validOffset",
        "view",
    )

    def __init__(
        self,
        table: KeyTable,
        domain: Domain,
        view: memoryview,
        access: Access,
        key: int,
        address: int,
        mapping: mmap.mmap | None = None,
        descriptor: int | None = None,
        validOffset: int = 0,
    ) -> None:
        self._table = table
        self._mapping = mapping
        self.domain = domain
        self.view = view
        self.length = len(view)
        self.access = access
        self.rights = int(access)
        self.address = address
        self.lkey = LKey(key)
        self.rkey = RKey(key)
        self.descriptor = descriptor
        self.validOffset = validOffset
        self.valid = True

    def __repr__(self) -> str:
        state = "" if self.valid else " closed"
        return f"<Region {self.address:#x}+{self.length} key {self.rkey:#010x} {self.access!r}{state}>"

    def segment(self, offset: int = 0, length: int | None = None) -> Segment:
        return Segment(self.address + offset, self.length - offset if length is None else length, self.lkey)

    def discard(self, offset: int, length: int) -> None:
        """Free the pages that are entirely in this part: they become zero, and use memory when written."""
        begin, end = -(-offset // PAGE) * PAGE, (offset + length) // PAGE * PAGE
        if self._mapping is not None and _REMOVE is not None and 0 <= begin < end <= self.length:
            with suppress(OSError):  # some file systems can't
                self._mapping.madvise(_REMOVE, begin, end - begin)

    def close(self) -> None:
        if not self.valid:
            return
        self._table._forget(self)
        self.valid = False
        mapping, self._mapping = self._mapping, None
        try:
            view, self.view = self.view, memoryview(b"")  # a new one, since a program may release it
            releaseView(view)
        finally:
            if self.descriptor is not None and mapping is not None:
                mapping[self.validOffset : self.validOffset + 8] = bytes(8)
                os.close(self.descriptor)
                self.descriptor = None
            if mapping is not None:
                closeMapping(mapping)


class KeyTable:
    """All regions of a device, by key."""

    def __init__(self, maxRegions: int = 1 << 20) -> None:
        self._regions: dict[int, Region] = {}
        # for callers that check rights themselves
        self.lookup: Callable[[int], Region | None] = self._regions.get
        self._maxRegions = maxRegions
        self._nextAddress = _FIRST_ADDRESS + (randbits(24) << 12)
        self._old = RecentNumbers(_KEYS_REMEMBERED)

    def __len__(self) -> int:
        return len(self._regions)

    def local(self, domain: Domain, segment: Segment, write: bool) -> memoryview:
        """Return the memory of a local segment; raises L{ProtectionError} (C{LOC_PROT_ERR})."""
        address, length, lkey = segment
        region = self._regions.get(lkey)
        if region is not None and region.domain is domain:
            offset = address - region.address
            end = offset + length
            if 0 <= offset <= end <= region.length and (not write or region.rights & LOCAL_WRITE):
                return region.view[offset:end]
        if length == 0:
            return _EMPTY  # nothing is accessed, so nothing is checked
        raise ProtectionError(self._why(region, domain, address, length))

    def fill(self, domain: Domain, segment: Segment, head: Buffer, body: Buffer, length: int) -> bool:
        """Write head and body, C{length} bytes in total, into a local segment; False if not permitted."""
        address, size, lkey = segment
        region = self._regions.get(lkey)
        if region is None or region.domain is not domain or length > size:
            return False
        begin = address - region.address
        if begin < 0 or begin + size > region.length or not region.rights & LOCAL_WRITE:
            return False
        view, middle = region.view, begin + len(head)
        view[begin:middle] = head
        view[middle : begin + length] = body
        return True

    def remote(self, domain: Domain, rkey: int, address: int, length: int, need: int) -> memoryview:
        """Return memory for an access of a peer that needs all of these rights; raises L{ProtectionError}."""
        region = self._regions.get(rkey)
        if region is not None and region.domain is domain:
            offset = address - region.address
            end = offset + length
            if 0 <= offset <= end <= region.length and region.rights & need == need:
                return region.view[offset:end]
        if length == 0:
            return _EMPTY  # the R_Key of an empty request is not checked (IBA C9-88)
        raise ProtectionError(self._why(region, domain, address, length))

    def find(self, domain: Domain, rkey: int) -> Region | None:
        """Return the region with this key, if it belongs to C{domain}."""
        region = self._regions.get(rkey)
        return region if region is not None and region.domain is domain else None

    def regionsOf(self, domain: Domain) -> list[Region]:
        return [region for region in self._regions.values() if region.domain is domain]

    def register(self, domain: Domain, buffer: memoryview, access: Access) -> Region:
        view = memoryview(buffer)
        if view.readonly or not view.c_contiguous:
            raise InvalidRequest("only writable, contiguous memory can be registered")
        if view.nbytes == 0:
            raise InvalidRequest("a memory region has at least one byte")
        self._admit(access)
        return self._add(
            Region(self, domain, view.cast("B"), access, self._newKey(), self._place(view.nbytes))
        )

    def allocate(self, domain: Domain, length: int, access: Access) -> Region:
        """
        Allocate zeroed memory with a key, in a memfd if peers may access it and the system supports that.

        @raise ResourceExhausted: there is not enough memory, or no descriptor for that of peers.
        """
        if length < 1:
            raise InvalidRequest(f"a memory region has at least one byte, not {length}")
        self._admit(access)
        key, address = self._newKey(), self._place(length)
        validOffset = -(-length // PAGE) * PAGE
        descriptor: int | None = None
        try:
            if access & _REMOTE and sys.platform == "linux" and not whyNoSharedMemory():
                descriptor, mapping = sealedMemory("txrdma", validOffset + PAGE, isSparing=True)
            else:
                mapping = mmap.mmap(-1, validOffset + PAGE)
        except (OSError, ValueError, OverflowError) as error:
            raise ResourceExhausted(f"no memory region of {length} bytes: {advised(error)}") from error
        mapping[validOffset : validOffset + 8] = _VALID
        view = memoryview(mapping)[:length]
        return self._add(Region(self, domain, view, access, key, address, mapping, descriptor, validOffset))

    def _admit(self, access: Access) -> None:
        if not 0 <= access <= _ALL_RIGHTS:
            raise InvalidRequest(f"{access!r} contains unknown access rights")
        if access & (Access.REMOTE_WRITE | Access.REMOTE_ATOMIC) and not access & Access.LOCAL_WRITE:
            raise InvalidRequest("memory that peers may write needs the local write right, too (IBA 10.6.3)")
        if len(self._regions) >= self._maxRegions:
            raise ResourceExhausted(f"the device has the maximum of {self._maxRegions} memory regions")

    def _place(self, length: int) -> int:
        address = self._nextAddress
        self._nextAddress += (-(-length // PAGE) + 1) * PAGE  # leave a hole between regions
        return address

    def _newKey(self) -> int:
        while True:
            key = randbits(32)
            if key and key not in self._regions and key not in self._old:
                return key

    def _add(self, region: Region) -> Region:
        self._regions[region.rkey] = region
        return region

    def _forget(self, region: Region) -> None:
        self._regions.pop(region.rkey, None)
        self._old.add(region.rkey)

    @staticmethod
    def _why(region: Region | None, domain: Domain, address: int, length: int) -> str:
        if region is None:
            return "no memory region has this key"
        if region.domain is not domain:
            return "the key belongs to another protection domain"
        if not region.address <= address <= address + length <= region.address + region.length:
            return f"{address:#x}+{length} is outside of {region!r}"
        return f"{region!r} does not allow it"
