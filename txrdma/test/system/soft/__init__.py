"""
System tests of L{txrdma.soft}.
"""
