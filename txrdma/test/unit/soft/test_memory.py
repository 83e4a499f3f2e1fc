"""
Memory regions of the software device, and their keys.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import sys
from pickle import PickleBuffer
from typing import Any, NoReturn
from unittest import skipUnless
from unittest.mock import Mock

from hypothesis import given
from hypothesis import strategies as st

from twisted.trial.unittest import SynchronousTestCase

from txrdma.error import InvalidRequest, ProtectionError, ResourceExhausted
from txrdma.iba.verbs import Access, Segment
from txrdma.soft.core import memory
from txrdma.soft.core.memory import Domain, KeyTable, PAGE, Region

ALL = Access.LOCAL_WRITE | Access.REMOTE_WRITE | Access.REMOTE_READ


class KeyTests(SynchronousTestCase):
    """Keys identify memory and its access rights."""

    def setUp(self) -> None:
        self.keys = KeyTable()
        self.domain = Domain()

    def allocate(self, length: int = 100, access: Access = ALL) -> Region:
        region = self.keys.allocate(self.domain, length, access)
        self.addCleanup(region.close)
        return region

    @given(st.integers(-(2**64), 2**65), st.integers(-(2**32), 2**64))
    def test_onlyRangesInsideTheRegion(self, offset: int, length: int) -> None:
        keys, domain = KeyTable(), Domain()
        region = keys.register(domain, memoryview(bytearray(1000)), ALL)
        inside = 0 <= offset <= offset + length <= 1000
        address = region.address + offset
        for attempt in (
            lambda: keys.remote(domain, region.rkey, address, length, Access.REMOTE_READ),
            lambda: keys.local(domain, Segment(address, length, region.lkey), False),
        ):
            if inside or length == 0:
                self.assertEqual(len(attempt()), length)
            else:
                self.assertRaises(ProtectionError, attempt)

    def test_unknownRightsAreRefused(self) -> None:
        wrong: tuple[Any, ...] = (16, 1 << 10, -1)
        for access in wrong:
            self.assertRaises(InvalidRequest, self.keys.allocate, self.domain, 100, access)
            self.assertRaises(
                InvalidRequest, self.keys.register, self.domain, memoryview(bytearray(9)), access
            )

    def test_closeReleasesRegisteredBuffer(self) -> None:
        """After C{close} a registered C{bytearray} can be resized again."""
        buffer = bytearray(100)
        region = self.keys.register(self.domain, memoryview(buffer), ALL)
        self.assertRaises(BufferError, buffer.extend, b"more")
        region.close()
        buffer.extend(b"more")
        self.assertEqual(len(region.view), 0)
        region.view.release()  # as programs do that hold the view
        other = self.allocate()
        self.assertEqual(len(self.keys.local(self.domain, Segment(0, 0, other.lkey), False)), 0)

    def test_closeInvalidatesKeyAndIsIdempotent(self) -> None:
        region = self.allocate()
        view = region.view[3:6]
        region.close()
        region.close()
        self.assertRaises(ProtectionError, self.keys.remote, self.domain, region.rkey, region.address, 1, 4)
        self.assertRaises(
            ProtectionError, self.keys.local, self.domain, Segment(region.address, 1, region.lkey), False
        )
        self.assertEqual((len(self.keys), len(view)), (0, 3))

    def test_keysAreNotReused(self) -> None:
        """Keys are not 0, and those of the last 4,096 closed regions are not used again."""
        self.patch(memory, "randbits", Mock(side_effect=[*range(1, 4097), 0, 1, 4096, 5000, 1, 2, 6000]))
        for number in range(1, 4097):
            region = self.keys.register(self.domain, memoryview(bytearray(1)), Access.NONE)
            self.assertEqual(region.rkey, number)
            region.close()
        region = self.allocate()
        self.assertEqual(region.rkey, 5000)  # neither 0, nor the oldest or newest of 4,096
        region.close()
        self.assertEqual([self.allocate().rkey for _ in range(2)], [1, 6000])

    def test_keysAreRandom(self) -> None:
        """Keys are random numbers of 32 bits."""
        regions = [self.allocate(1, Access.NONE) for _ in range(100)]
        keys = [region.rkey for region in regions]
        self.assertTrue(all(0 < key < 1 << 32 for key in keys))
        self.assertGreater(len({key >> 24 for key in keys}), 10)
        self.assertGreater(len({key & 0xFF for key in keys}), 10)

    def test_onlyGrantedMemoryIsAccessible(self) -> None:
        """A peer accesses memory of its domain, by its key, inside its range, and with the granted rights."""
        region = self.allocate(100, Access.REMOTE_READ)
        others = self.keys.allocate(Domain(), 100, ALL)
        self.addCleanup(others.close)
        read, write = Access.REMOTE_READ, Access.REMOTE_WRITE
        self.assertEqual(len(self.keys.remote(self.domain, region.rkey, region.address + 90, 10, read)), 10)
        for key, address, length, need in (
            (region.rkey, region.address + 91, 10, read),
            (region.rkey, region.address - 1, 10, read),
            (region.rkey, others.address, 10, read),
            (region.rkey, region.address, 10, write),
            (region.rkey, region.address, 10, read | write),
            (others.rkey, others.address, 10, read),
            (others.rkey, region.address, 10, read),
            (region.rkey ^ 1, region.address, 10, read),
        ):
            self.assertRaises(ProtectionError, self.keys.remote, self.domain, key, address, length, need)

    def test_allocationFailureIsResourceExhausted(self) -> None:
        self.assertRaises(ResourceExhausted, self.keys.allocate, self.domain, 1 << 62, ALL)

    @skipUnless(hasattr(os, "memfd_create"), "only Linux has memory with descriptors")
    def test_limitOfDescriptorsIsNamed(self) -> None:
        """The error of an allocation without a descriptor names the limit to raise; servers log it."""
        self.allocate()  # asks first whether memory can be shared

        def refuse(*_: object) -> NoReturn:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

        self.patch(os, "memfd_create", refuse)
        error = self.assertRaises(ResourceExhausted, self.allocate)
        self.assertIn("ulimit -n", str(error))

    def test_bufferOfOtherFormatIsRegisteredAsBytes(self) -> None:
        import array

        numbers = array.array("I", [1, 2, 3])
        region = self.keys.register(self.domain, memoryview(numbers), ALL)
        self.assertEqual((region.length, region.descriptor), (12, None))
        region.view[0] = 9
        region.close()
        self.assertEqual(numbers[0] & 0xFF if sys.byteorder == "little" else numbers[0] >> 24, 9)


@skipUnless(sys.platform == "linux", "memfds are Linux's")
class SharedTests(SynchronousTestCase):
    """Regions that peers can map."""

    def setUp(self) -> None:
        self.region = KeyTable().allocate(Domain(), PAGE + 1, ALL)
        self.addCleanup(self.region.close)
        assert self.region.descriptor is not None
        self.descriptor = self.region.descriptor

    def test_mappingSharesBytesAndValidWord(self) -> None:
        self.assertEqual(os.fstat(self.descriptor).st_size, self.region.validOffset + PAGE)
        with mmap.mmap(self.descriptor, 0) as mapping:
            mapping[PAGE] = 7
            self.assertEqual(self.region.view[PAGE], 7)
            word = slice(self.region.validOffset, self.region.validOffset + 8)
            self.assertEqual(int.from_bytes(mapping[word], sys.byteorder), 1)
            self.region.close()
            self.assertEqual(int.from_bytes(mapping[word], sys.byteorder), 0)

    def test_sizeAndSealsAreFixed(self) -> None:
        for size in (0, PAGE, PAGE * 10):
            self.assertRaises(PermissionError, os.ftruncate, self.descriptor, size)
        self.assertRaises(
            PermissionError, fcntl.fcntl, self.descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE
        )

    def test_discardedPagesTakeNoMemory(self) -> None:
        """Pages that are entirely in a discarded part are zero, and take no memory until they are written."""
        region = KeyTable().allocate(Domain(), 4 * PAGE, ALL)
        self.addCleanup(region.close)
        assert region.descriptor is not None
        region.view[:] = b"x" * (4 * PAGE)
        before = os.fstat(region.descriptor).st_blocks
        region.discard(PAGE - 1, 2 * PAGE + 2)
        freed = before - os.fstat(region.descriptor).st_blocks
        self.assertEqual(freed * 512, 2 * PAGE)
        expected = b"x" * PAGE + bytes(2 * PAGE) + b"x" * PAGE
        self.assertEqual(bytes(region.view), expected)
        for offset, length in ((-PAGE, 2 * PAGE), (3 * PAGE, 2 * PAGE), (1, PAGE), (3 * PAGE, -PAGE)):
            region.discard(offset, length)
        self.assertEqual(bytes(region.view), expected)
        region.close()
        region.discard(0, PAGE)

    def test_descriptorIsNotInheritedAndIsClosed(self) -> None:
        self.assertFalse(os.get_inheritable(self.descriptor))
        self.region.close()
        self.assertRaises(OSError, os.fstat, self.descriptor)

    def test_noDescriptorLeaks(self) -> None:
        keys, domain = KeyTable(), Domain()
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(50):
            keys.allocate(domain, 100_000, ALL).close()
        region = keys.allocate(domain, 100_000, ALL)
        held, used = region.view[10:20], PickleBuffer(region.view)
        region.close()
        self.assertEqual((bytes(held), bytes(used)), (bytes(10), bytes(100_000)))
        del held, used
        self.assertEqual(len(os.listdir("/proc/self/fd")), before)

    def test_onlyMemoryForPeersNeedsDescriptor(self) -> None:
        def full(*_arguments: object, **_options: object) -> NoReturn:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

        self.patch(memory, "sealedMemory", full)
        keys, domain = KeyTable(), Domain()
        for remote in (Access.REMOTE_READ, Access.REMOTE_WRITE, Access.REMOTE_ATOMIC):
            self.assertRaises(ResourceExhausted, keys.allocate, domain, 5000, Access.LOCAL_WRITE | remote)
        region = keys.allocate(domain, 5000, Access.LOCAL_WRITE)
        region.view[:] = b"x" * 5000
        region.discard(0, PAGE)
        self.assertEqual(bytes(region.view), bytes(PAGE) + b"x" * (5000 - PAGE))
        region.close()

    def test_withoutMemfds(self) -> None:
        self.patch(sys, "platform", "elsewhere")
        keys, domain = KeyTable(), Domain()
        region = keys.allocate(domain, 5000, ALL)
        self.assertIsNone(region.descriptor)
        keys.remote(domain, region.rkey, region.address, 5000, Access.REMOTE_WRITE)[:] = b"x" * 5000
        self.assertEqual(bytes(region.view), b"x" * 5000)
        region.close()
