"""
Layouts of management datagrams: attributes, frames and values, each declared once, as in the specification.

Each module follows a chapter of InfiniBand Architecture vol. 1, and contains neither ports nor protocols.
"""
