"""
Names of shares and services, when this process has no descriptors left.
"""

from __future__ import annotations

import errno
import os
import socket

from twisted.trial.unittest import SynchronousTestCase

from txrdma.soft.host.names import isClaimed, isShareTaken


class ExhaustedTests(SynchronousTestCase):
    def test_nothingIsFoundWithoutDescriptor(self) -> None:
        """Without a descriptor, nothing counts as in use; an error would close a device's socket."""

        def refuse(*_: object) -> None:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

        self.patch(socket, "socket", refuse)
        self.assertFalse(isShareTaken("127.0.0.1", 7))
        self.assertFalse(isClaimed("127.0.0.1", 7))
