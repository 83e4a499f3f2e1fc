"""
Tests without processes, sockets, a running reactor or real time.
"""
