"""Integration tests of L{txrdma.verbs}."""
