"""Integration tests of L{txrdma.kit}."""
