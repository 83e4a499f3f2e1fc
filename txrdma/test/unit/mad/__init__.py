"""Unit tests of L{txrdma.mad}."""
