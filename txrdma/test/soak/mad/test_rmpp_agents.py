"""
Tables of ten thousand records by RMPP.
"""

from __future__ import annotations

from txrdma.test.unit.mad import test_rmpp_agents


class LongTableTests(test_rmpp_agents.TableTests):
    """The tests of tables, with ten thousand records."""

    TABLE = test_rmpp_agents.records(10_000)
