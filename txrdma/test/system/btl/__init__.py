"""
System tests of L{txrdma.btl}.
"""
