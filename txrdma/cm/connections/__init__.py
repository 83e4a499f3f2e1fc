"""
Connections including their queue pairs: protocols for messages, and endpoints that make them.

Devices and memory:

 - C{queuepairs}: attributes and capacities of queue pairs, and their acknowledgement timeout
   (C{PATIENT_TIMEOUT}).
 - C{receives}: registered memory for received messages, shared by connections: sizes (C{LARGEST}), and
   regions that stay (C{SPARE_REGIONS}).
 - C{adapter}: a device with its manager and completion queues (C{QUEUE_DEPTH}), shared by endpoints; when it
   is closed; which path is the alternate one.

One connection:

 - C{_credits}: flow control: number of receives at first (C{FIRST_RECEIVES}), its growth, and when credits
   are returned.
 - C{_life}: the order of received messages, which wait while the protocol is paused or a long message is
   read, and the end of the connection; without I/O.
 - C{sendqueue}: requests that wait or are posted: entries of the queue, and when producers are paused
   (C{HIGH_WATER}).
 - C{longmessages}: reads messages that do not fit into a receive.
 - C{requests}: the methods by which a program sends, shares, reads, writes and uses atomics.
 - C{migration}: arms the alternate path of a queue pair, and detects its use.
 - C{protocol}: a base class of protocols.
 - C{transport}: one connection: receives and completions, keepalive probes, the delay after a receive was
   missing (C{_RNR_TIMER}), and when the memory of idle receives is returned to the system.

How connections are made:

 - C{attempt}: the active end, from REQ to protocol; repeats a REQ with a smaller MTU.
 - C{listening}: the passive end: which REQs are rejected and why, and the queue pair of others.
 - C{hostnames}: addresses of a host name, and when the next one is tried (C{ATTEMPT_DELAY}).
 - C{endpoints}: client and server endpoints of C{rdma:} and C{ib:}; the lifetime of paths without one
   (C{LIFE_TIME}).

Datagrams:

 - C{datagramqueues}: the queue pair of one port, with its numbers of C{RECEIVES}, C{SENDS} and address
   handles.
 - C{datagrams}: datagram services, their protocol, endpoints (C{sidr:}) and multicast groups.
"""
