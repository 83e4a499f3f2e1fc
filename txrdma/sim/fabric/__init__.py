"""
A simulated InfiniBand subnet: switches, hosts and routers with their agents, and a subnet manager (SM).

Its parts, each of which imports only those before it: L{model <txrdma.sim.fabric.model>} (nodes and tables),
L{agents <txrdma.sim.fabric.agents>} (answers of a node), L{wire <txrdma.sim.fabric.wire>} (delivery of
datagrams), L{sm <txrdma.sim.fabric.sm>} (subnet manager and SA), and L{fabric <txrdma.sim.fabric.fabric>}.
"""

from txrdma.sim.fabric.fabric import SimulatedFabric

__all__ = ["SimulatedFabric"]
