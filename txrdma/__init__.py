"""
RDMA for Twisted.
"""
