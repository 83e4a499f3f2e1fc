"""
What connections that behave like TCP share: the transport, the connection, the listening port, and shutdown.

Used by C{smc:}, C{rsocket:} and C{btl:}.
"""
