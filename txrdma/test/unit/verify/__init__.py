"""Unit tests of L{txrdma.verify}."""
