"""
The route of the software device between processes of one host: lanes in shared memory, and their rendezvous.

A lane, without system calls:

 - C{_layout}: the memory that two queue pairs share: offsets, records, smallest and largest ring
   (C{sharedmemoryport} and C{datagrams} choose the sizes).
 - C{_rings}: writes and reads records in both rings.
 - C{_atomics}: atomic operations as records, executed by the owner of the memory.
 - C{_wakeups}: when one process wakes the other: wake words, doorbells and nudges.
 - C{_remote}: the peer's memory: mapped or accessed by messages; limit of regions that a peer offers unasked
   (C{MOST_OFFERED}).
 - C{_incoming}: the receiving half of a lane: copies records into receives, and validates the peer's data.
 - C{_outgoing}: the sending half of a lane: executes requests, and completes them.
 - C{_lane}: both halves together, as the route of a queue pair; fails a request if the peer takes too long to
   connect, or to post a receive (RNR timer).
 - C{datagramlane}: datagrams between two devices, one ring per direction; when it is full they are dropped.

Between processes:

 - C{_rendezvous}: the messages about shared memory, their version and checks, and the names of sockets.
 - C{_doorbells}: eventfds that processes have sent each other, their numbers and limit.
 - C{unixpackets}: the connection to another process, with descriptors; it also ends when that process is
   killed. Limits of queued messages (C{_MOST_QUEUED}, C{_MOST_QUEUED_BYTES}).
 - C{peerdevice}: sends messages and doorbells to another device.
 - C{_unopened}: a queue pair before its first request, without a lane.
 - C{sharedqueuepair}: a queue pair with its lane: joins it with the peer's, maps regions (at most
   C{MOST_REGIONS}, and C{MOST_MAPPED_BYTES} of a peer), and repeats requests for them.
 - C{datagrams}: the datagram lanes of a port: when they are opened, polled (C{MOST_POLLED}) and armed
   (C{WATCH_SECONDS}); size of their rings.
 - C{sharedmemoryport}: finds other processes, processes their messages, and fails all queue pairs with a
   process when its connection ends. Size of rings; limits of JOINs that wait (C{MOST_UNANSWERED}).

L{txrdma.soft.core.completion} polls the queue pairs, except dormant ones.
"""
