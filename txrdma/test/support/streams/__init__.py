"""
Tests of conversations between two processes: what judges them, and the quick ones of them.

All of them are played by C{make conversations}.
"""
