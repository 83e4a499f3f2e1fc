"""
Counters of a large fabric read by other processes: a monitor sends its calls to collectors, in batches.

 - C{wire}: messages, and their limits (C{MOST_CALLS}, C{MOST_BYTES}); the calls that collectors make
   (C{READABLE}).
 - C{connection}: what both ends have in common.
 - C{collector}: makes calls for monitors, and limits their number (C{MOST_MONITORS}).
 - C{pool}: the monitor's side: which collector reads a port, when one is lost (C{GRACE_SECONDS}),
   reconnected, or reported missing (C{MISSING_SECONDS}).
"""
