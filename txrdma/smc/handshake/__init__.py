"""
The CLC handshake (RFC 7609, 3.5) on a TCP connection, for client and server, and the fallback to TCP.

 - C{_machine}: decides without I/O which messages are sent, and how long to wait for one, also for those that
   cross a Decline.
 - C{carriers}: by which carrier a connection detects whether its peer supports SMC.
 - C{outcomes}: counts and logs how connections end their handshake; C{fallback=no}.
 - C{plaintcp}: the fallback to TCP: passes bytes and the TCP connection on to the user's protocol.
 - C{negotiation}: what client and server have in common: runs a handshake, and chooses the device of a
   connection (C{device=auto}); L{txrdma.smc.common.realports} remembers devices that could not be opened.
 - C{proposing}: the client's side: whether it proposes SMC, and how it answers an Accept.
 - C{accepting}: the server's side: how it answers a Proposal, with the limit of handshakes in progress.
"""
