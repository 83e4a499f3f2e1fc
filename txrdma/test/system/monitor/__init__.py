"""System tests of L{txrdma.monitor}."""
