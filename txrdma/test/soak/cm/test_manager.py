"""
Ten thousand connections of the communication manager at once.
"""

from __future__ import annotations

from txrdma.test.unit.cm import test_manager


class SeedTests(test_manager.SeedTests):
    """As many connections as a busy server has."""

    connections = 10_000
