"""
Connections that behave like TCP: their transport, connection, listening port, and shutdown.

C{smc:}, C{rsocket:} and C{btl:} use them.
"""
