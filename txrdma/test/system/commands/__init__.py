"""System tests of L{txrdma.commands}."""
