"""
Tests that are long by nature: C{make soak} runs them.
"""
