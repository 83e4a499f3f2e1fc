"""Unit tests of L{txrdma.kit}."""
