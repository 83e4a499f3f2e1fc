"""
SMC-R (RFC 7609): streams with TCP's guarantees over RDMA.

Subpackages, lowest first; each imports only those to its left, and C{kernel} also C{dialing}, C{interfaces}
and C{wrapping} (C{txrdma.test.unit.test_layers} checks that there are no cycles)::

    common, wire < terms < flow < group < stream < handshake < kernel
                   terms < signalling < handshake
                                        stream < status < kernel

Subpackages:

 - C{common}: counters, names in logs, use of the reactor, and the RDMA ports for C{device=auto}.
 - C{wire}: layouts of CLC, LLC and CDC messages.
 - C{terms}: what two ends offer and agree on; the options of an endpoint with their defaults and ranges.
 - C{flow}: the bytes of one connection, and the states in which it closes.
 - C{group}: link groups with their links, buffers, limits and timeouts.
 - C{signalling}: how two ends learn that both support SMC.
 - C{stream}: a connection as Twisted sees it, and its status.
 - C{handshake}: the CLC handshake, the choice of a device, and the fallback to TCP.
 - C{status}: statistics, metrics, and the socket that C{txrdma connections} queries.
 - C{kernel}: the backend with the kernel's AF_SMC sockets.

Modules, of which C{userspace} and C{kernel.transports} are the two backends, and C{endpoints} and C{strings}
the public API:

 - C{interfaces}: C{ISMCBackend}, the interface of the two backends.
 - C{dialing}: Twisted's TCP client endpoints with other TCP clients: their time-out (30 s without
   C{timeout}), and C{::1} as the last address of a host name.
 - C{wrapping}: factories that wrap a user's factory until it is known whether a connection uses SMC.
 - C{connecting}: one call of a client's C{connect}: its TCP connections, and a handshake on each.
 - C{userspace}: the backend with our own stack: C{connect}, listening ports, and accepted connections, which
   use plain TCP beyond the limit of handshakes.
 - C{preloading}: imports modules before the first connection, for C{twistd --chroot} and C{--uid}.
 - C{endpoints}: client and server endpoints; C{backendNamed} chooses the backend.
 - C{strings}: the keys of C{smc:} endpoint strings, and which of them C{backend=kernel} rejects.
"""
