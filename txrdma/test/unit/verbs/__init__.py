"""Unit tests of L{txrdma.verbs}."""
