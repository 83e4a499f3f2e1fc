"""
The bytes of one connection, without I/O.

 - C{ring}: cursors of both ring buffers, and their validation.
 - C{sendqueue}: the send queue of a link, which retains unacknowledged messages while there is another link.
 - C{flow}: sends and receives the bytes of one connection; after a failover, sends retained ones again.
 - C{closing}: how a connection ends, and when its ring may be reused, because the peer does not write into
   it any more; C{owner}: what a flow requires of its stream.
"""
