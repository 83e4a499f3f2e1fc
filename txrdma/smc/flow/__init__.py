"""
The bytes of one connection, without I/O.

 - C{ring}: cursors and sequence numbers of received messages, and their validation, also after a failover;
   when consumed bytes are reported to the peer.
 - C{sendqueue}: the send requests of a link: which SENDs request a completion (C{SIGNAL_EVERY}), memory to
   send from (C{STAGE}), and unacknowledged messages, which are retained while there is another link.
 - C{owner}: what a flow requires of its stream.
 - C{flow}: sends and receives the bytes of one connection, again after a failover; limits of the bytes per
   C{dataReceived} (C{DELIVERY}) and of messages before the end of the handshake (C{_EARLY}).
 - C{closing}: the states of a connection until its end (C{LIFECYCLE}): what is reported, how long to wait for
   the peer's end (C{LINGER_TIMEOUT}, C{LOST_TIMEOUT}), and when its ring may be reused.
"""
