"""
Reliable connections and datagrams as RoCE v2 packets over UDP.

Protocols, without I/O:

 - C{_packets}: runs of packets, which the cores and the UDP port exchange; PSNs and headers.
 - C{_entries}: a posted request in progress: its PSNs, packets and extension headers.
 - C{_window}: the congestion window of a connection, in packets (C{FIRST}, C{WIDEST}).
 - C{_requester}: sends requests, long READs in parts (C{READ_CHUNK}), resends packets after a NAK, a gap or a
   timeout, and fails when retries are used up (L{txrdma.soft.core.roundtrip} has the times).
 - C{_answers}: answers to READs and atomics; results of atomics, retained for repeated requests.
 - C{_responder}: executes the peer's requests in order, once; acknowledges them, and sends NAKs.
 - C{_migration}: the migration state of a queue pair with an alternate path.
 - C{_datagram}: datagram queue pairs: packets to send, receives, and dropped datagrams.

Sockets and routes:

 - C{counters}: counters of a RoCE port.
 - C{udp}: a UDP socket that moves many datagrams in one call; the size of its buffers (C{BUFFER}).
 - C{peers}: addresses with which a port exchanges packets, with cached parts of headers and ICRC.
 - C{groups}: datagrams to an IP multicast group.
 - C{localpeers}: datagrams to devices of this host through shared memory; when a lane is sought again
   (C{SEEK_SECONDS}).
 - C{routes}: the route of one queue pair: drives its cores, migrates its path.
 - C{roce}: all routes on one UDP port: converts datagrams, checks the ICRC, runs the timer; how many peers
   are stored (C{_PEERS}).
 - C{wellknown}: UDP port 4791, opened when a peer needs it.
"""
