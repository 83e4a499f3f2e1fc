"""Benchmarks, each in the same run as Twisted's TCP. Start them with C{python -m benchmarks}."""
