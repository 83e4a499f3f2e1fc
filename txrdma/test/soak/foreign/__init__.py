"""
Suites of other projects, on every reactor.
"""
