"""
Tests of L{txrdma.soft.host}.
"""
