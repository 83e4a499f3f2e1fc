"""
Connections that behave like TCP: their transport, connection, listening port, and shutdown.

C{smc:}, C{rsocket:} and C{btl:} use them. Modules, lowest first:

 - C{core}: the interface of cores of streams over message connections.
 - C{_lifecycle}: when a stream over a message connection ends for its protocol, and with which reason
   (C{ENDINGS}); no I/O.
 - C{transport}: Twisted's TCP interfaces for all streams: producers, half close, TLS.
 - C{connection}: streams over message connections: when bytes are posted and delivered, and how long a
   stopping reactor waits for them (C{STOPPING_SECONDS}, C{CLOSING_SECONDS}).
 - C{endpoints}: attempts, accepted connections and listening ports of streams over message connections.
"""
