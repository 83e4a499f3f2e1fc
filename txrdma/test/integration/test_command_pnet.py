"""
C{txrdma pnet}, and C{txrdma devices --for}: tables and ports in words.
"""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from txrdma.commands.common import devicechoice
from txrdma.error import DeviceUnavailable


class EndsTests(SynchronousTestCase):
    """Where a host is, by the system's word."""

    def test_loopback(self) -> None:
        """A connection to an address of this host is from one of its own."""
        self.assertEqual(devicechoice._ends("127.0.0.1"), ("127.0.0.1", "127.0.0.1"))

    def test_noName(self) -> None:
        """A name that can't be is told as such."""
        self.assertRaises(DeviceUnavailable, devicechoice._ends, "no.such.host.invalid")
