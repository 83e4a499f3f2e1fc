"""
Simulated time, networks and InfiniBand fabrics, for tests, demonstrations and rehearsals.

Its parts, each of which imports only those before it:

  1. L{clock <txrdma.sim.clock>}, L{network <txrdma.sim.network>} and
     L{sharedmemory <txrdma.sim.sharedmemory>}: time, and the hosts of the software device.
  2. L{nets <txrdma.sim.nets>}: descriptions of fabrics, as text or generated.
  3. L{fabric <txrdma.sim.fabric>}: an InfiniBand subnet with its agents and its subnet manager.
  4. L{netfabrics <txrdma.sim.netfabrics>}, L{faults <txrdma.sim.faultgenerator>} and
     L{strings <txrdma.sim.strings>}: conversion, faults, and port strings.
"""
