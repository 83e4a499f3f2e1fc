"""
Checks of this host and of its RDMA devices, for C{txrdma doctor} and C{txrdma verify}.

Nothing on the host is changed. Modules, lowest first: C{problems}, C{host}, C{deviceports}, C{environment}.
"""
