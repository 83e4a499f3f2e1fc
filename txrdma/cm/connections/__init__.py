"""
Connections including their queue pairs: protocols for messages, and endpoints that make them.

 - C{adapter}: a device with its manager; C{queuepairs}: attributes; C{receives}: registered memory.
 - C{_credits}: flow control; C{_life}: the order of received messages, which wait while the protocol is
   paused or a long message is read, and the end; C{sendqueue}: requests that wait or are posted.
 - C{longmessages}, C{requests}, C{migration}: parts of a transport; C{transport}: one connection, with its
   keepalive probes, which also return the memory of idle receives to the system.
 - C{attempt}, C{listening}, C{endpoints}, C{protocol}: how connections are made.
 - C{datagramqueues}, C{datagrams}: datagram services.
"""
