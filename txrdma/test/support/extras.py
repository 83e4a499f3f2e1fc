"""Tests that need a package of an extra."""

from __future__ import annotations

from importlib.util import find_spec
from unittest import SkipTest


def needs(module: str, extra: str) -> None:
    """Skip this test unless a module can be imported; C{extra} of txrdma installs it."""
    if find_spec(module) is None:
        raise SkipTest(f"{module} is not installed: pip install 'txrdma[{extra}]'")
