"""Soak tests of L{txrdma.fabric}."""
