"""
Connections: their transports, TCP connections, and status.

 - C{tcpcounts}: bytes of a TCP connection, as the kernel counts them.
 - C{connectionstatus}: the status of each live connection, the list of these, and sums of ended ones; logs
   ends.
 - C{tcpmonitor}: the TCP connection beside an SMC-R connection: how its end shows that the peer has closed,
   aborted or was killed; how long to wait then for the link (C{GRACE}, C{LONGEST_GRACE}).
 - C{stream}: the local end of a connection: joins flow, states of closing, link and transport.
 - C{transport}: Twisted's interfaces to a stream, and C{autocork=no}.
"""
