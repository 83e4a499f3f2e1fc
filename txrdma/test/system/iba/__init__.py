"""System tests of L{txrdma.iba}."""
