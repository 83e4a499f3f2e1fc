"""
Reliable messages over several unreliable paths, without I/O.

Counters:

 - C{counters}: counters of a module.

Parts of the state of one path, lowest first:

 - C{congestion}: the congestion window: how it grows, by how much losses and marks shrink it, and when it is
   restored.
 - C{roundtrip}: the round trip, and how long to wait before a segment is sent again.
 - C{marks}: ECT(0) and CE: whether a path uses them, or their counts are wrong.
 - C{path}: a path with these three; which messages and segments were sent on it. The limit for an address
   that is not validated is in C{module}.

Parts of the state of one peer, lowest first:

 - C{receiving}: the receive window: duplicates, and what is acknowledged.
 - C{window}: the send window: which segments are lost and sent again, which timeouts were spurious, when a
   path is silent, and when a peer is given up.
 - C{assembly}: messages in chunks, with the limits of their number, bytes and age.
 - C{ordering}: messages that wait for earlier ones.
 - C{receivebuffer}: allocation in the peer's receive buffer, and which messages are long enough for it.
 - C{peer}: queued messages and the next segment, and the states from open to removed.

All peers, lowest first:

 - C{events}: packets to send, and what a module reports.
 - C{regions}: memory into which peers may write.
 - C{earlypackets}: packets that arrive before their sender's introduction.
 - C{matching}: pairs of interfaces of two processes.
 - C{pendingacks}: acknowledgements and refusals that wait, and for how long; how many segments they
   permit a peer.
 - C{timetable}: the queue of deadlines, and the keepalive interval.
 - C{shortcuts}: fast paths for single messages.
 - C{module}: all peers: processes packets, shares turns fairly, and holds back packets to an address that is
   not validated (AMPLIFICATION).

For transports:

 - C{flow}: windows of tags, in bytes.
"""
