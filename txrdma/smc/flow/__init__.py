"""
The bytes of one connection, without I/O.

 - C{ring}: cursors of both ring buffers, and their validation; when consumed bytes are reported to the peer.
 - C{sendqueue}: the send requests of a link; which SENDs request a completion, and the unacknowledged
   messages that are retained while there is another link.
 - C{owner}: what a flow requires of its stream.
 - C{flow}: sends and receives the bytes of one connection; after a failover, sends retained ones again. Bytes
   per C{dataReceived}, and messages that arrive before the handshake has completed.
 - C{closing}: the states of a connection from its opening to its end: how each kind of end is reported, how
   long the peer's is awaited, and when its ring may be reused, because the peer does not write into it any
   more.
"""
