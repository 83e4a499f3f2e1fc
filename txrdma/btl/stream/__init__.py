"""
Streams over connections of the byte transfer layer, for protocols of bytes.
"""
