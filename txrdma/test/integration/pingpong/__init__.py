"""Integration tests of L{txrdma.pingpong}."""
