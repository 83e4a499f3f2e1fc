"""
Simulated fabrics answer as ibsim does where OpenSM has configured it: every attribute of every node and port.

What OpenSM has set is read from ibsim, and set again in ours; then both are asked all that ibsim answers.
Besides what L{txrdma.test.system.ibsim.test_sim_answers} names, these are not compared:

  - C{subnetTimeOut}, which ibsim never changes;
  - SMInfo, which ibsim does not answer itself;
  - counters of data and packets, in which ibsim counts what its clients ask;
  - errors in PortCountersExtended, which ibsim's do not have;
  - of switches with more than eight ports, the lanes from all ports in but two: the tables are alike.
"""

from __future__ import annotations

from txrdma.sim.nets.fattree import fatTree
from txrdma.test.system.ibsim import test_sim_managed


class LargeTests(test_sim_managed.ManagedAnswersTests):
    """1,024 hosts, three levels of switches."""

    net = fatTree(1024).text()
    timeout = 600
