"""
Tests with a real reactor, sockets on this host, and one process.
"""
