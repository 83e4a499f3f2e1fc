"""
The fabric monitor: a subnet that is read again and again, and the faults that show in it.
"""
