"""
A long transfer between two processes whose networks are cut.
"""

from __future__ import annotations

from txrdma.test.system.cm import test_cutting


class CuttingTests(test_cutting.CuttingTests):
    """A transfer that takes longer than all timers of a connection."""

    mebibytes = 256
