"""
Simulated time, networks and InfiniBand fabrics, for tests and demonstrations.

Its parts, each of which imports only those before it:

  - L{clock <txrdma.sim.clock>}, L{network <txrdma.sim.network>} and
    L{sharedmemory <txrdma.sim.sharedmemory>}: time, and hosts with software devices.
  - L{nets <txrdma.sim.nets>}: descriptions of fabrics, as text or generated.
  - L{fabric <txrdma.sim.fabric>}: an InfiniBand subnet with its agents and its subnet manager.
  - L{netfabrics <txrdma.sim.netfabrics>}, L{twin <txrdma.sim.twin>}: conversion, and simulations of recorded
    fabrics.
  - L{faults <txrdma.sim.faultgenerator>}, L{faultplan <txrdma.sim.faultplan>} and
    L{strings <txrdma.sim.strings>}: random and planned faults, and port strings.
"""
