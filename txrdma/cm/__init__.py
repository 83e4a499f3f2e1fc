"""
Connections by the communication manager of RDMA (InfiniBand Architecture vol. 1, chapter 12).

Each part imports only those before it:

 1. C{layouts}: messages on the wire.
 2. C{core}: state machines and their dispatcher, without I/O.
 3. C{errors}, C{terms}, C{interfaces}: terms of connections, and the interfaces of managers and transports.
 4. C{status}, C{manager}, C{rdmacm}: our own manager, and the kernel's by librdmacm.
 5. C{connections}: adapters, transports and endpoints of message connections and datagrams.
 6. C{strings}, C{rping}: endpoint strings, and the conversation of librdmacm's rping.
 7. C{rsocket}: byte streams over message connections.
"""
