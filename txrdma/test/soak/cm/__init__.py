"""
Tests of the communication manager that are long by nature.
"""
