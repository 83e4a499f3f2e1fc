"""
Tests for L{txrdma.unix.mapping}.
"""

from __future__ import annotations

import errno
import mmap
import os
import resource
import sys
from unittest import mock, skipIf

from twisted.trial.unittest import SynchronousTestCase

from txrdma.unix import mapping as mappings
from txrdma.unix.mapping import closeMapping, sealedMemory


class HighDescriptorTests(SynchronousTestCase):
    """Tests for mappings of descriptors with high numbers."""

    def test_content(self) -> None:
        """The mapping has the contents of the file, also on PyPy, after the descriptor is closed."""
        self.patch(mappings, "KEPT_BELOW", 0)
        descriptor, mapping = sealedMemory("txrdma test", mmap.PAGESIZE)
        self.addCleanup(closeMapping, mapping)
        try:
            os.pwrite(descriptor, b"hello", 3)
        finally:
            os.close(descriptor)
        self.assertEqual(mapping[:9], b"\0\0\0hello\0")


class SpareDescriptorTests(SynchronousTestCase):
    """Memory that leaves the last descriptors of a process to others."""

    def allocate(self, free: int) -> int:
        """Make memory in a process that can have this number of descriptors more; return its descriptor."""
        for _ in range(8):  # a quarter of the limit must not be less than SPARE
            self.addCleanup(os.close, os.dup(0))
        self.free = os.dup(0)
        os.close(self.free)
        self.patch(resource, "getrlimit", lambda which: (self.free + free, self.free + free))
        descriptor, mapping = sealedMemory("txrdma test", mmap.PAGESIZE, isSparing=True)
        self.addCleanup(closeMapping, mapping)
        self.addCleanup(os.close, descriptor)
        return descriptor

    def test_lastDescriptorsAreReserved(self) -> None:
        self.patch(mappings, "SPARE", 2)
        self.patch(mappings, "SPARE_SHARE", 1000)
        error = self.assertRaises(OSError, self.allocate, 2)
        self.assertEqual(error.errno, errno.EMFILE)
        self.assertIn("the last 2 of", str(error))
        left = os.dup(0)
        os.close(left)
        self.assertEqual(left, self.free)

    def test_memoryMayTakeTheDescriptorBeforeThem(self) -> None:
        self.patch(mappings, "SPARE", 2)
        self.patch(mappings, "SPARE_SHARE", 1000)
        self.assertEqual(self.allocate(3), self.free)

    def test_reserveGrowsWithLimit(self) -> None:
        """Each connection whose memory has a descriptor may need more of them, once it is used."""
        self.patch(mappings, "SPARE", 1)
        self.patch(mappings, "SPARE_SHARE", 2)
        error = self.assertRaises(OSError, self.allocate, 3)
        self.assertIn(f"the last {(self.free + 3) // 2} of", str(error))

    def test_processesWithoutLimit(self) -> None:
        self.patch(resource, "getrlimit", lambda which: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        descriptor, mapping = sealedMemory("txrdma test", mmap.PAGESIZE, isSparing=True)
        os.close(descriptor)
        mapping[0] = 1
        mapping.close()
        self.assertTrue(mapping.closed)


class OtherUserTests(SynchronousTestCase):
    """Memory whose descriptor a process of another user has."""

    def test_otherUsersCannotReopenMemory(self) -> None:
        descriptor, mapping = sealedMemory("txrdma test", mmap.PAGESIZE)
        self.addCleanup(closeMapping, mapping)
        self.addCleanup(os.close, descriptor)
        self.assertEqual(os.fstat(descriptor).st_mode & 0o777, 0o600)


class CloseTests(SynchronousTestCase):
    """Tests for the end of a mapping."""

    def test_viewsOfClosedMappingRemainValid(self) -> None:
        mapping = mmap.mmap(-1, mmap.PAGESIZE)
        view = memoryview(mapping)[2:7]
        view[:] = b"hello"
        closeMapping(mapping)
        self.assertEqual(bytes(view), b"hello")

    @skipIf(sys.implementation.name == "pypy", "PyPy's garbage collector unmaps")
    def test_mappingWithoutViewsIsUnmappedAtOnce(self) -> None:
        mapping = mmap.mmap(-1, mmap.PAGESIZE)
        closeMapping(mapping)
        self.assertTrue(mapping.closed)

    def test_pypy(self) -> None:
        """PyPy's mappings are not closed, because views would be empty afterwards."""
        mapping = mmap.mmap(-1, mmap.PAGESIZE)
        with mock.patch.object(sys.implementation, "name", "pypy"):
            closeMapping(mapping)
        self.assertFalse(mapping.closed)
