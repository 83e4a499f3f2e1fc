"""
Unit tests of L{txrdma.smc}.
"""
