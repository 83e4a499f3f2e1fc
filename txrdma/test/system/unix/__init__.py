"""
System tests of L{txrdma.unix}.
"""
