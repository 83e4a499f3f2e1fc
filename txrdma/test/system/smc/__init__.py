"""
System tests of L{txrdma.smc}.
"""
