"""
Shared code of SMC: counters, names for logs, use of the reactor, and the RDMA ports for C{device=auto}.

 - C{counting}: counters of this process: large writes and reads (above C{SMALL} bytes) by size, connections,
   fallbacks, and sums of ended connections.
 - C{names}: names of CLC diagnoses in logs, and log prefixes.
 - C{reactoruse}: when SMC is in use on a reactor, and suspends or resumes its readers and delayed calls;
   whether other code has removed them.
 - C{realports}: cached RDMA ports of this host for C{device=auto}, and devices that could not be opened; both
   for L{LIFE<txrdma.smc.common.realports.LIFE>} seconds.
"""
