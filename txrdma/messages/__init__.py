"""
Connections that carry messages: what C{rdma:}, C{ib:} and C{btl:} have in common.

Modules, lowest first: L{interfaces}; L{protocol}, base classes for applications; L{strings}, endpoints from
strings; L{transport} and L{attempt}, base classes for implementations.
"""
