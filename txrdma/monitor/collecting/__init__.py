"""
Counters of a large fabric read by other processes: a monitor sends its calls to collectors, in batches.

Subpackages are C{wire} (messages), C{collector} (their execution) and C{pool} (their distribution).
"""
