"""
Memory regions and address handles of libibverbs.

Follows InfiniBand Architecture vol. 1, 10.2.3 and 10.6.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable
from typing import Any

from zope.interface import implementer

from txrdma.iba.types import LKey, RKey
from txrdma.iba.verbs import Access, AddressVector
from txrdma.interfaces import (
    IAddressHandle,
    IMemoryRegion,
)
from txrdma.kit.values import record
from txrdma.unix.mapping import closeMapping, releaseView
from txrdma.verbs.pyverbs.bindings import Pyverbs, translated
from txrdma.verbs.pyverbs.resourcetracker import leak, ResourceTracker


@implementer(IMemoryRegion)
class PyverbsMemoryRegion:
    """Registered memory; its buffer can't be freed before it is deregistered."""

    def __init__(
        self,
        verbs: Pyverbs,
        tracker: ResourceTracker,
        domain: Any,
        view: memoryview,
        access: Access,
        mapping: mmap.mmap | None,
        closed: Callable[[PyverbsMemoryRegion], object],
    ) -> None:
        self._tracker = tracker
        self._mapping = mapping
        self._onClosed = closed
        self.view = view
        self.length = view.nbytes
        self._anchor: Any = (ctypes.c_char * self.length).from_buffer(view)
        self.address = ctypes.addressof(self._anchor)
        try:
            self._raw: Any = verbs.MR(domain, self.length, int(access), address=self.address)
        except verbs.Error as error:
            raise translated(error, f"no memory region of {self.length} bytes, {access!r}") from error
        self.lkey = LKey(self._raw.lkey)
        self.rkey = RKey(self._raw.rkey)

    def __repr__(self) -> str:
        return f"<PyverbsMemoryRegion {self.address:#x}+{self.length}{'' if self._raw else ' closed'}>"

    def close(self) -> None:
        self.lost()
        if self._onClosed is _nobody:
            return
        onClosed, self._onClosed = self._onClosed, _nobody
        view, self.view = self.view, memoryview(b"")  # a new one, since a program may release it
        releaseView(view)
        if self._mapping is not None:
            closeMapping(self._mapping)
            self._mapping = None
        onClosed(self)

    def lost(self) -> None:
        """Deregister the memory; its bytes remain."""
        raw, self._raw = self._raw, None
        if raw is not None:
            self._tracker.close(raw)
            if self._tracker.stuck:
                leak(self._anchor)
            self._anchor = None


def _nobody(region: PyverbsMemoryRegion) -> None:
    """Do nothing: the region is closed already, and its domain knows that."""


@implementer(IAddressHandle)
@record(eq=False)
class PyverbsAddressHandle:
    """The address of a port, for datagrams."""

    _tracker: ResourceTracker
    raw: Any
    address: AddressVector
    _onClosed: Callable[[PyverbsAddressHandle], object]

    def close(self) -> None:
        raw, self.raw = self.raw, None
        if raw is not None:
            self._tracker.close(raw)
            self._onClosed(self)
