"""
Layouts of management datagrams: attributes, frames and values, declared once as the specification has them.

Each module follows a chapter of InfiniBand Architecture vol. 1, and has neither a port nor a protocol.
"""
