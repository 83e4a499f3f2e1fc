"""
The kernel's AF_SMC sockets as a backend of endpoints, and their state by sock_diag(7).

 - C{sockets}: AF_SMC sockets, whether one has fallen back to TCP, and its unsent bytes.
 - C{sockdiag}: the kernel's list of SMC sockets.
 - C{status}: the status of one connection, from a list that is cached for 20 ms.
 - C{transports}: the backend: connections, connectors and listening ports, and polling for unsent bytes
   before a socket is closed.
"""
