"""Unit tests of L{txrdma.cm}."""
