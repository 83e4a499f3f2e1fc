"""Integration tests of L{txrdma.btl}."""
