"""
Message connections: the interfaces and base classes that C{rdma:}, C{ib:} and C{btl:} share.

Modules, lowest first:

 - C{address}: the addresses of ends.
 - C{interfaces}: interfaces of transports, protocols, endpoints and remote memory.
 - C{memory}: names of shared memory, and the longest read or write.
 - C{protocol}: base classes for applications.
 - C{keepalive}: the timer of probes of an idle peer, for C{rdma:}, C{ib:} and C{rsocket:}; the interval is in
   L{txrdma.cm.terms}.
 - C{transport}: the base class of transports: producers, exceptions of the application, shutdown of the
   reactor.
"""
