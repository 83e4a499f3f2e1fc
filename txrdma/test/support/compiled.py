"""Tests that need the classes of pure Python."""

from __future__ import annotations

from unittest import SkipTest

from txrdma.commands.common.installation import areCoresCompiled


def skipIfCompiled() -> None:
    """Skip a test that patches methods of compiled classes, or replaces their objects."""
    if areCoresCompiled():
        raise SkipTest("compiled classes can't be patched, nor their objects replaced")
