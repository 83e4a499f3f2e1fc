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

Flow control and endpoints are not here, because they have no code in common: C{cm} counts messages, for each
of which the peer has posted a receive (L{txrdma.cm.connections._credits}), and connects by the communication
manager; C{btl} counts bytes (L{txrdma.btl.core.flow}), and connects by TCP.
"""
