"""
The route of the software device between processes of one host: lanes in shared memory, and their rendezvous.

The main modules, lowest first:

 - C{_layout}: the memory that two queue pairs share; C{_rendezvous}, the messages about it.
 - C{_lane} with C{_incoming} and C{_outgoing}: records, work requests and completions, without system calls.
 - C{unixpackets}: the connection to another process, which also ends when that process is killed;
   C{peerprocess} sends messages and doorbells by it.
 - C{sharedqueuepair}, C{_unopened}: one queue pair, with and without a lane; C{datagrams}: UD queue pairs.
 - C{routes}: finds other processes, processes their messages, and fails all queue pairs with a process when
   its connection ends.

L{txrdma.soft.core.completion} polls the queue pairs, except dormant ones.
"""
