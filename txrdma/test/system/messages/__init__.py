"""
System tests of L{txrdma.messages}.
"""
