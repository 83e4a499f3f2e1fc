"""
System tests of L{txrdma.verbs}.
"""
