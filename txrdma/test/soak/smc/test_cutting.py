"""
Failover between two processes where each of two networks fails, told and untold.
"""

from __future__ import annotations

from txrdma.test.system.smc import test_cutting


class EveryCutTests(test_cutting.CuttingTests):
    """Each network goes down and is cut."""

    cuts = "every"
