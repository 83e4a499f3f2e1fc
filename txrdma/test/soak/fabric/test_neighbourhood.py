"""Searches of many fabrics whose switches are linked at random."""

from __future__ import annotations

from txrdma.test.unit.fabric import test_neighbourhood


class ManyRandomTests(test_neighbourhood.RandomTests):
    """The tests of random fabrics, with more of them."""

    seeds = 100
