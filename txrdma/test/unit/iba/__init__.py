"""Unit tests of L{txrdma.iba}."""
