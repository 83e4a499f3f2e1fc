"""
Integration tests of L{txrdma.iba}.
"""
