"""Unit tests of L{txrdma.commands}."""
