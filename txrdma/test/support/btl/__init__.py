"""
Suites for the byte transfer layer.
"""
