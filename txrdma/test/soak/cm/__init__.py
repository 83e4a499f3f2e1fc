"""
Long tests of L{txrdma.cm}.
"""
