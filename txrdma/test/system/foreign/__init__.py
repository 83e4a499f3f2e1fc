"""
Third-party test suites for TCP, run with C{smc:} at both ends.
"""
