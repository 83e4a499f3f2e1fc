"""
Long tests of L{txrdma.verbs}.
"""
