"""The CLC handshake (RFC 7609, 3.5) on a TCP connection, for client and server, and the fallback to TCP."""
