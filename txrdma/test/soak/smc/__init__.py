"""
Long tests of L{txrdma.smc}.
"""
