"""Unit tests of L{txrdma.messages}."""
