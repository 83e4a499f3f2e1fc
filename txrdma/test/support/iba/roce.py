"""
Shared by the test_roce modules of several groups.
"""

from __future__ import annotations

from typing import Any

from twisted.trial.unittest import SkipTest


def scapyRoCE() -> Any:  # scapy has no types
    """Scapy's RoCE layer."""
    try:
        from scapy.contrib import roce as theirs
    except ImportError:
        raise SkipTest("scapy is not installed") from None
    return theirs
