"""
Diagnosis of a fabric: error thresholds, lost nodes and links, and the log of findings.

Faults:

 - C{tallies}: sums of errors in sliding windows.
 - C{thresholds}: findings of error counters: limits by default (C{DEFAULT_LIMITS}), flapping, bit error
   rates, and which errors are excused (C{TRAINING_SECONDS}, C{RESTART_SECONDS}).
 - C{topologywatch}: nodes and links that appear or disappear, and when missing ones are forgotten
   (C{FORGET_SECONDS}).
 - C{cablemoves}: whether a fault follows a moved cable, and how long faults are remembered.
 - C{cablestates}: cables stored as events for the next process.

Findings and events:

 - C{findinglog}: when a finding is raised and cleared (C{FindingRules}; later, if it returns often);
   acknowledgements and comments, with their limits.
 - C{journal}: events and changes of a fabric, their kinds (C{KINDS}), and how many are kept.
 - C{findingreports}: passes reports of findings to log, journal and owner.
 - C{fabricdiagnosis}: what sweeps, refreshes and counters show, and which findings that raises or clears.
 - C{fabricstate}: the fabric at an earlier time, from events, and differences between two times.
"""
