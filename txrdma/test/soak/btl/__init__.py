"""
Long tests of the byte transfer layer.
"""
