"""
How fast it is, always beside Twisted's own TCP in the same run. Run it with C{python -m benchmarks}.
"""
