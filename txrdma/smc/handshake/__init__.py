"""
The CLC handshake (RFC 7609, 3.5) on a TCP connection, for client and server, and the fallback to TCP.

 - C{_machine}: decides without I/O which messages are sent, and how long to wait for one.
 - C{outcomes}: counts and logs results; C{plaintcp}: the fallback to TCP.
 - C{negotiation}: runs a handshake, and chooses the device; C{proposing}: the client's side; C{accepting}:
   the server's side, with the limit of handshakes in progress.
 - C{carriers}: how a connection detects whether its peer supports SMC.
"""
