"""Unit tests of L{txrdma.unix}."""
