"""
A long transfer of the communication manager's connections whose path is cut twice.
"""

from __future__ import annotations

from txrdma.test.unit.cm import test_migration


class CutTests(test_migration.CutTests):
    """A transfer that takes longer than all timers of a connection."""

    totalBytes = 256 << 20
    slowBecause = "256 MiB pass the software device's protocol in two simulated hosts"
