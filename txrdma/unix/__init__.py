"""
What processes of one host share: UNIX sockets with credentials and descriptors, and memory.

UNIX sockets:

 - C{sockets}: credentials of the peer, which users are admitted, and listeners on abstract names, which pause
   when descriptors are lacking (C{PAUSE_SECONDS}).
 - C{socketdirectory}: sockets in a directory, across network namespaces.
 - C{lines}: lines of text between two processes: the longest (C{LONGEST}), and how much may be unread
   (C{MOST_UNREAD}).
 - C{answers}: the status socket of each process, and queries of all of them, with a time-out.

Memory that processes share:

 - C{sharing}: whether processes can share memory here.
 - C{_overlay}: mappings without a descriptor.
 - C{mapping}: memory files and their mappings; the descriptors that new memory must leave to others (SPARE).
 - C{fences}: fences between accesses.
 - C{eventfds}: reads of eventfds that never block, whatever a peer does to their flags.
"""
