"""
What all of SMC shares: counters, names for logs, use of the reactor, and the RDMA ports for C{device=auto}.
"""
