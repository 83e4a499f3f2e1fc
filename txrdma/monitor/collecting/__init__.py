"""
Counters of a large fabric read by other processes: a monitor sends its calls to collectors, in batches.

 - C{wire}: messages, and their limits.
 - C{connection}: what both ends have in common.
 - C{collector}: makes calls for monitors, and limits these.
 - C{pool}: the monitor's side: which collector reads a port, and when one is lost.
"""
