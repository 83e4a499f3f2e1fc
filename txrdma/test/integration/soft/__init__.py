"""
Integration tests of L{txrdma.soft}.
"""
