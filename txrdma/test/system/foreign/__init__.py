"""
Test suites that others have written for TCP, over C{smc:} at both ends.
"""
