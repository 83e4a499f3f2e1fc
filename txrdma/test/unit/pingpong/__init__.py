"""Unit tests of L{txrdma.pingpong}."""
