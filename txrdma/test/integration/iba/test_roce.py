"""
Tests for L{txrdma.iba.roce} and L{txrdma.iba.internet}: against recorded packets and scapy.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from twisted.trial.unittest import SynchronousTestCase

from txrdma.iba.internet import checksum
from txrdma.test.support.iba.roce import scapyRoCE


class ChecksumTests(SynchronousTestCase):
    """The internet checksum."""

    def test_example(self) -> None:
        """The example of RFC 1071, section 3."""
        self.assertEqual(checksum(bytes.fromhex("0001f203f4f5f6f7")), 0xFFFF - 0xDDF2)

    @given(st.binary(min_size=1, max_size=50))
    def test_scapy(self, data: bytes) -> None:
        """Scapy computes the same."""
        scapyRoCE()
        from scapy.utils import checksum as theirs

        self.assertEqual(checksum(b"\1\0" + data), theirs(b"\1\0" + data))
