"""
Tests with several processes, programs of others, packaging, and the kernel.
"""
