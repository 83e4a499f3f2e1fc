"""
Integration tests of L{txrdma.streams}.
"""
