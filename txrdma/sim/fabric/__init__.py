"""
An InfiniBand subnet that is simulated: switches, hosts and routers with their agents, and a manager.
"""

from txrdma.sim.fabric.fabric import SimulatedFabric

__all__ = ["SimulatedFabric"]
