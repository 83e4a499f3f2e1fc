"""
Code shared by test modules: fakes, peers and simulated hosts.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

CHECKOUT: Final = Path(__file__).resolve().parents[3]
VECTORS: Final = CHECKOUT / "txrdma" / "test" / "vectors"
"""Recorded packets and answers that were not made by txrdma."""

Test = TypeVar("Test", bound=Callable[..., Any])


def slow(reason: str) -> Callable[[Test], Test]:
    """Mark one test of a class as slow; C{slowBecause = reason} does it for all tests of a class."""

    def marked(test: Test) -> Test:
        test.__dict__["slowBecause"] = reason
        return test

    return marked
