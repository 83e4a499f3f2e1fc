"""
Integration tests of L{txrdma.smc}.
"""
