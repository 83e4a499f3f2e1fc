"""Integration tests of L{txrdma.mad}."""
