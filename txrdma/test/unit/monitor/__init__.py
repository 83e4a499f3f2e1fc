"""Unit tests of L{txrdma.monitor}."""
