"""Simulations of programs that use connections of the communication manager: C{rdma:} and C{rsocket:}."""
