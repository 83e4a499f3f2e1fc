"""
UNIX sockets between processes of one host: credentials, descriptors, lines of text, and names in a directory.
Memory that processes share: whether they can, its mappings, and fences between accesses.
"""
