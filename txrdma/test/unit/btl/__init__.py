"""Unit tests of L{txrdma.btl}."""
