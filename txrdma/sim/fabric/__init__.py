"""A simulated InfiniBand subnet: switches, hosts and routers with their agents, and a subnet manager (SM)."""

from txrdma.sim.fabric.fabric import SimulatedFabric

__all__ = ["SimulatedFabric"]
