"""Unit tests of L{txrdma.fabric}."""
