"""Integration tests of L{txrdma.cm}."""
