"""
Memory regions, completion queues and queue pairs of the software device, and the interface of its routes.

Memory:

 - C{recent}: a table of numbers that were released recently, for C{memory} and for queue pair numbers.
 - C{memory}: memory regions, their keys and when a key is used again (C{_KEYS_REMEMBERED}), and the checks of
   each access.
 - C{pieces}: bytes in several buffers, and the execution of atomic operations.

Queues and queue pairs:

 - C{route}: the interface of the route of a queue pair.
 - C{routeport}: the local end of routes of one kind.
 - C{doorbellpage}: the bytes by which peers name the route that they ring.
 - C{completion}: completion queues and channels, which poll their routes. An idle route becomes dormant
   (C{_SWEEP}) until a request is posted, or its peer sets its byte of the C{doorbellpage}.
 - C{sharedreceives}: shared receive queues.
 - C{transitions}: the permitted changes of a queue pair's state and attributes.
 - C{directdatagrams}: datagrams without work requests.
 - C{queuepair}: queue pairs: posting, checks of requests, flushing at the end.

Ports and paths:

 - C{netdev}: MTU, MAC address, share (1 to 254) and UDP port of a device at a network interface; the length
   of the longest datagram.
 - C{roundtrip}: when a requester retransmits (C{FIRST_TIMEOUT}, C{LONGEST_TIMEOUT}), changes its path
   (C{PATH_SECONDS}) or gives up (C{timeout} and C{retryCount} of the queue pair), also when the
   process was busy meanwhile.
"""
