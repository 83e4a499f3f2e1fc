"""Integration tests of L{txrdma.unix}."""
