"""
Reliable messages over several unreliable paths, without I/O.

Counters:

 - C{counters}: counters of a module.

Parts of the state of one path, lowest first:

 - C{congestion}: the congestion window: how it grows, by how much losses and marks shrink it, and when it is
   restored.
 - C{roundtrip}: the round trip, and how long to wait before a segment is sent again (C{FIRST_TIMEOUT},
   C{LONGEST_TIMEOUT}).
 - C{marks}: ECT(0) and CE: whether a path uses them, or their counts are wrong.
 - C{path}: a path with these three; which messages and segments were sent on it. The limit for an address
   that is not validated is in C{module}.

Parts of the state of one peer, lowest first:

 - C{receiving}: the receive window: duplicates, and what is acknowledged.
 - C{window}: the send window: which segments are lost and sent again, which timeouts were spurious, when a
   path is silent, and when a peer is given up (C{GIVE_UP}, C{FEWEST_TRIES}).
 - C{assembly}: messages in chunks: the longest (C{LONGEST}), and limits of their number, bytes and age
   (C{OLDEST}).
 - C{ordering}: messages that wait for earlier ones, and the limit of their bytes (C{MOST_HELD}).
 - C{receivebuffer}: allocation in the peer's receive buffer, and which messages are long enough for it
   (C{LONG}).
 - C{peer}: queued messages and the next segment, and the states from open to removed (C{LINGER}).

All peers, lowest first:

 - C{events}: packets to send, and what a module reports.
 - C{regions}: memory into which peers may write.
 - C{earlypackets}: packets that arrive before their sender's introduction, and their limits.
 - C{matching}: pairs of interfaces of two processes (at most C{MOST_INTERFACES}).
 - C{pendingacks}: acknowledgements and refusals that wait, and for how long (C{ACK_DELAY}); how many segments
   they permit a peer.
 - C{timetable}: the queue of deadlines, and the keepalive interval (C{KEEP_ALIVE}).
 - C{shortcuts}: fast paths for single messages.
 - C{module}: all peers: processes packets, shares turns fairly (C{FAIR_SHARE}), limits packets of a turn, and
   those to an address that is not validated (C{AMPLIFICATION}).

For transports:

 - C{flow}: windows of tags, in bytes (C{WINDOW}).
"""
