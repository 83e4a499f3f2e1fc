"""System tests of L{txrdma.pingpong}."""
