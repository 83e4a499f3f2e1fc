"""
The CLC handshake (RFC 7609, 3.5) on a TCP connection, for client and server, and the fallback to TCP.

 - C{_machine}: decides without I/O which messages are sent, how long to wait for one (C{CLC_TIMEOUT}), and
   for those that cross a Decline (C{LATE_DECLINE_TIMEOUT}).
 - C{carriers}: which carrier detects whether peers of an endpoint support SMC, by its options.
 - C{outcomes}: counts and logs how connections end their handshake; C{fallback=no}.
 - C{plaintcp}: the fallback to TCP: passes bytes and the TCP connection on to the user's protocol.
 - C{negotiation}: what client and server have in common: runs a handshake (option C{timeout}), and chooses
   the device (C{device=auto}); L{txrdma.smc.common.realports} remembers devices that could not be opened.
 - C{proposing}: the client's side: whether it proposes SMC, and how it answers an Accept.
 - C{accepting}: the server's side: how it answers a Proposal, with the limit of handshakes in progress.
"""
