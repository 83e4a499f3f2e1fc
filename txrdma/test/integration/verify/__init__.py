"""Integration tests of L{txrdma.verify}."""
