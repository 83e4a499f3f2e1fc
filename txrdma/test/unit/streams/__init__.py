"""Unit tests of L{txrdma.streams}."""
