"""
System tests of L{txrdma.cm}.
"""
