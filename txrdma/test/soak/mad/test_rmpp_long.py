"""A table of ten thousand records over an unreliable wire."""

from __future__ import annotations

from txrdma.test.unit.mad import test_rmpp_long


class LongWireTests(test_rmpp_long.WireTests):
    """The tests of both ends and a wire, with a table of ten thousand records."""

    records = 10_000
