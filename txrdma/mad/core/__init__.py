"""
Protocol cores of calls and of RMPP transfers, without a clock or a socket.

Agents drive C{calls}; the other modules are its parts, lowest first:

 - C{addressing}: which entries of the GID and P_Key tables a datagram uses, and whether a source can answer.
 - C{frames}: fast encoding of datagrams, and the keys in them.
 - C{answers}: whether an answer matches its request; redirections; records of tables, and their largest
   number (C{MOST_RECORDS}).
 - C{timeouts}: how long to wait for a response, for slow peers as well, and the usual number of retries
   (C{RETRIES}).
 - C{transactions}: open requests of this end: transaction IDs, retransmission, pauses after BUSY
   (C{BUSY_PAUSE_SECONDS}).
 - C{datagrams}: the datagram of a call.
 - C{rmpp}: one RMPP transfer: window (C{WINDOW}), resending (C{RESENDS}), its longest duration and message.
 - C{transfers}: all RMPP transfers of a port: limits of incoming requests and of answers, in all and for one
   requester, and when an incoming one is given up (C{IDLE_SECONDS}).
 - C{recent}: a table of recent contents by key, for C{REMEMBERED_SECONDS}; L{txrdma.mad.server} detects
   repeated notices by it.
 - C{calls}: calls of a port: sending, answers, redirections and their number (C{MOST_REDIRECTIONS}).
"""
