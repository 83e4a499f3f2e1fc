"""The bytes of one connection, without I/O: rings and cursors, the queue of send requests, closing."""
