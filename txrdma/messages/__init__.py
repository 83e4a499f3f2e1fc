"""
Message connections: the interfaces and base classes that C{rdma:}, C{ib:} and C{btl:} share.

Modules, lowest first:

 - L{txrdma.messages.address} and L{txrdma.messages.interfaces};
 - L{txrdma.messages.memory}: names of shared memory;
 - L{txrdma.messages.protocol}: base classes for applications;
 - L{txrdma.messages.keepalive}: probes of an idle peer, for C{rdma:}, C{ib:} and C{rsocket:};
 - L{txrdma.messages.transport}: the base class of transports.
"""
