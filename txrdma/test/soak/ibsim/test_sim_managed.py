"""
Simulated fabrics beside ibsim and OpenSM: larger ones, and all of ibsim's examples.
"""

from __future__ import annotations

from txrdma.sim.nets.fattree import fatTree
from txrdma.test.system.ibsim import test_sim_managed, test_sim_records
from txrdma.test.system.ibsim.fabric import EXAMPLE, example, NO_EXAMPLES


class ExampleTests(test_sim_managed.ManagedAnswersTests):
    net = example("net")
    skip = NO_EXAMPLES


class TwoPathExampleTests(test_sim_managed.ManagedAnswersTests):
    """Two ways between two switches, four hosts."""

    net = EXAMPLE
    skip = NO_EXAMPLES


class MediumTests(test_sim_managed.ManagedAnswersTests):
    net = fatTree(128).text()


class MediumSingleTests(test_sim_records.SingleTests):
    """Every record of 128 hosts."""

    net = MediumTests.net


class MediumPathTests(test_sim_records.PathTests):
    """128 hosts, and paths between some of them."""

    net = MediumTests.net
    step = 7


class LargeTests(test_sim_managed.ManagedAnswersTests):
    """1,024 hosts, three levels of switches."""

    net = fatTree(1024).text()
    timeout = 600
