"""
Unit tests of L{txrdma.soft}.
"""
