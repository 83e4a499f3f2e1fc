"""
Shared code of SMC: counters, names for logs, use of the reactor, and the RDMA ports for C{device=auto}.

 - C{counting}: counters of writes and reads by size; what is counted during transfer.
 - C{names}: names of CLC diagnoses in logs, and log prefixes.
 - C{reactoruse}: when SMC is in use on a reactor, and suspends or resumes its readers and delayed calls;
   whether other code has removed them.
 - C{realports}: cached RDMA ports of this host for C{device=auto}, and devices that could not be opened; both
   for L{LIFE<txrdma.smc.common.realports.LIFE>} seconds.
"""
