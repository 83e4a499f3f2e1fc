"""
Management datagrams: the 256-byte messages by which InfiniBand fabrics are run.
"""
