"""System tests of L{txrdma.ports}."""
