"""
UNIX sockets between processes of one host: credentials, descriptors, lines of text, and names in a directory;
and whether processes can share memory.
"""
