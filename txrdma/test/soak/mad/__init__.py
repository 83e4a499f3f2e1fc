"""Long tests of L{txrdma.mad}."""
