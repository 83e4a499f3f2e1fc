"""Unit tests of L{txrdma.sim}."""
