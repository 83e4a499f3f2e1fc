"""
A simulated InfiniBand subnet: switches, hosts and routers with their agents, and a subnet manager (SM).

Its parts, lowest first:

 - C{model}: nodes and tables.
 - C{agents}: answers of a node.
 - C{wire}: delivery of datagrams, also past nodes with faults.
 - C{sm}: subnet manager and SA.
 - C{fabric}: the subnet as a whole: attaching ports, faults, and when the SM sweeps again
   (C{RESWEEP_SECONDS}).
"""

from txrdma.sim.fabric.fabric import SimulatedFabric

__all__ = ["SimulatedFabric"]
