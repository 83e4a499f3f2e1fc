"""Integration tests of L{txrdma.monitor}."""
