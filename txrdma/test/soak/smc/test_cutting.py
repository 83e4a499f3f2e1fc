"""
Failover between two processes when each of two networks fails, with and without notification.
"""

from __future__ import annotations

from txrdma.test.system.smc import test_cutting


class EveryCutTests(test_cutting.Cutting):
    """Each network goes down, and each silently drops packets."""

    def test_every(self) -> None:
        """Nothing is lost or duplicated."""
        self.assertWhole("every")
