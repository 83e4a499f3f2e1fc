"""
Long tests of endpoints.
"""
