"""Reasons why processes of this machine can't share memory."""

from __future__ import annotations

import errno
import os
import sys
from unittest import skipUnless
from unittest.mock import Mock

from twisted.python.monkey import MonkeyPatcher
from twisted.trial.unittest import SynchronousTestCase

from txrdma.unix.sharing import whyNoSharedMemory


@skipUnless(sys.platform == "linux", "needs Linux")
class SharingTests(SynchronousTestCase):
    def setUp(self) -> None:
        whyNoSharedMemory.cache_clear()
        self.addCleanup(whyNoSharedMemory.cache_clear)

    def deny(self, name: str, number: int) -> MonkeyPatcher:
        """Return a patcher that makes a function of L{os} fail."""
        return MonkeyPatcher((os, name, Mock(side_effect=OSError(number, os.strerror(number)))))

    def test_memoryCanBeSharedAndNoDescriptorRemains(self) -> None:
        before = os.listdir("/proc/self/fd") if os.path.isdir("/proc/self/fd") else []
        self.assertEqual(whyNoSharedMemory(), "")
        if before:
            self.assertEqual(len(os.listdir("/proc/self/fd")), len(before))

    def test_deniedSystemCallIsNamedWithRemedy(self) -> None:
        for name, call in (("eventfd", "eventfd2"), ("memfd_create", "memfd_create")):
            for number in (errno.EPERM, errno.ENOSYS):
                whyNoSharedMemory.cache_clear()
                why = self.deny(name, number).runWithPatches(whyNoSharedMemory)
                self.assertIn(f"the system call {call} fails", why)
                self.assertIn("allow it in the seccomp profile", why)

    def test_lackOfDescriptorsIsNoLastingReason(self) -> None:
        with self.assertRaises(OSError):
            self.deny("eventfd", errno.EMFILE).runWithPatches(whyNoSharedMemory)
        self.assertEqual(whyNoSharedMemory(), "")

    def test_missingPythonFunctionIsNamed(self) -> None:
        self.patch(os, "memfd_create", None)
        del os.memfd_create
        self.assertIn("this Python has no os.memfd_create", whyNoSharedMemory())
