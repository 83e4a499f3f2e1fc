"""
UNIX sockets between processes of one host: credentials, descriptors, lines of text, and names in a directory;
whether processes can share memory, its
mappings, and fences between accesses.
"""
