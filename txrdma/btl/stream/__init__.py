"""
Byte streams over connections of the byte transfer layer.

Modules, lowest first:

 - C{_bytes}: the bytes as messages: data, end of writing, close; without I/O.
 - C{end}: one end of a stream, and its transport.
 - C{endpoints}: clients and listeners.
 - C{strings}: the keys of C{btl:} endpoint strings.
"""
