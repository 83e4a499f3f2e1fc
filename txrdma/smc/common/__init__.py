"""
Shared code of SMC: counters, names for logs, use of the reactor, and the RDMA ports for C{device=auto}.
"""
