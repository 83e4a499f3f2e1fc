"""
Tests of management datagrams.
"""
