"""
System tests of L{txrdma.streams}.
"""
