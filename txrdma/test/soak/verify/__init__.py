"""
Long tests of L{txrdma.verify}.
"""
