"""
Simulated time, networks and InfiniBand fabrics, for tests and demonstrations.

Its parts, lowest first:

 - C{clock}: simulated time.
 - C{network}: hosts with software devices, and a network that loses, delays and alters datagrams (C{Faults}).
 - C{sharedmemory}: processes of one host that share memory.
 - C{nets}: descriptions of fabrics, as text or generated.
 - C{fabric}: an InfiniBand subnet with its agents and its subnet manager.
 - C{netfabrics}: conversion between fabrics and net files.
 - C{twin}: simulations of recorded fabrics.
 - C{strings}: strings of simulated management ports (C{sim...}).
 - C{faultgenerator}: random faults and traffic.
 - C{faultplan}: faults at planned times.
"""
