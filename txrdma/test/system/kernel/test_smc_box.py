"""
The kernel's SMC-R between AF_SMC sockets, on which other suites rely.
"""

from __future__ import annotations

import os
import threading

from twisted.trial.unittest import SynchronousTestCase

from txrdma.test.system.kernel import Box, OUTSIDE, record
from txrdma.test.system.kernel.smcprogram import smcSocket

try:
    from lab import smc
except ImportError:
    OUTSIDE = "not a checkout"

BOXES = (Box(smc=True),)
SIZE = 1 << 20


class SMCTests(SynchronousTestCase):
    """Two AF_SMC sockets connect over RDMA."""

    skip = OUTSIDE
    if OUTSIDE is None and os.uname().release.startswith("6.1."):
        skip = "rxe of this kernel reports no flushed receives: SMC-R sockets would hang"

    def test_stream(self) -> None:
        """Bytes pass over SMC-R, not over TCP."""
        with smcSocket() as listener, smcSocket() as client:
            listener.bind(("10.77.0.2", 0))
            listener.listen()
            client.bind(("10.77.0.1", 0))
            connecting = threading.Thread(target=client.connect, args=(listener.getsockname(),))
            connecting.start()
            server, _ = listener.accept()
            connecting.join()
            with server:
                data = os.urandom(SIZE)
                sending = threading.Thread(target=client.sendall, args=(data,))
                sending.start()
                got = b""
                while len(got) < SIZE:
                    got += server.recv(SIZE)
                sending.join()
                self.assertEqual(got, data)
                self.assertEqual(smc.modes()[client.getsockname()[1]], "SMC-R")
        record("bytes by the kernel's SMC-R", SIZE)
