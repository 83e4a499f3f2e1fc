"""
Reading of a fabric: sweeps, counters of ports, forwarding tables; on a reactor.

 - C{settings}: intervals, time-outs and bounds of a poller.
 - C{statistics}: what a poller has done so far.
 - C{attributes}: which counters a port has, and how they are decoded.
 - C{changesigns}: which nodes to query again after traps and silences, and how many unplanned sweeps these
   may cause.
 - C{counterreader}: rounds that read the counters of all ports; when a node is silent (C{SILENT_TIMES}), how
   long it then is not read, or another one has its LID.
 - C{details}: causes of dropped packets, at ports that have dropped some.
 - C{fec}: counters of forward error correction, and pauses after refusals (C{REFUSED_SECONDS}).
 - C{congestion}: waits of ports for credits, by virtual lane.
 - C{surveyor}: when forwarding tables, P_Keys, firmware and cables are read again (C{SETTLE_SECONDS}).
 - C{locallink}: whether other nodes are reached at all, or the local port is at fault.
 - C{replaced}: frees the memory of fabrics that newer ones have replaced.
 - C{poller}: the whole: when to sweep, refresh and read; loops, and findings about these; how long a finding
   must last (C{DEFAULT_RULES}).
"""
