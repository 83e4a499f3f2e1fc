"""
The software RDMA device.

Subpackages, lowest first: C{core} (memory, completions, queue pairs), C{shared} (the route through shared
memory), C{host} (a UDP port that several devices share), C{rc} (the RoCE v2 route), then the modules here,
which assemble a device.
"""
