"""
The software RDMA device.

Subpackages, lowest first: C{core} (memory, completions, queue pairs), C{shared} (the route through shared
memory), C{rc} (the route by RoCE v2), then the modules here, which put a device together.
"""
