"""System tests of L{txrdma.mad}."""
