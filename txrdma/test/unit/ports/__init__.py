"""Unit tests of L{txrdma.ports}."""
