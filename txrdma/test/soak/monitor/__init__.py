"""Long tests of L{txrdma.monitor}."""
