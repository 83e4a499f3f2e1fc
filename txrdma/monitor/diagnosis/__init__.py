"""
Diagnosis of a fabric: error thresholds, lost nodes and links, and the log of findings.

Faults:

 - C{tallies}: sums of errors in sliding windows.
 - C{thresholds}: findings of error counters: limits by default, flapping, bit error rates, and which errors
   are excused (link training, restarts).
 - C{topologywatch}: nodes and links that appear or disappear, and when missing ones are forgotten.
 - C{cablemoves}: whether a fault follows a moved cable.
 - C{cablestates}: cables stored as events for the next process.

Findings and events:

 - C{findinglog}: when a finding is raised and cleared (longer, if it returns); acknowledgements and comments,
   with their limits.
 - C{journal}: events and changes of a fabric, and their kinds.
 - C{findingreports}: passes reports of findings to log, journal and owner.
 - C{fabricstate}: the fabric at an earlier time, from events, and differences between two times.
"""
