"""
The fabric monitor: polls a subnet, stores its counters, and reports faults.

Subpackages import only those above them:

  - C{supervisor}: periodic tasks
  - C{diagnosis}: findings and changes: error thresholds, lost nodes and links
  - C{collecting}: calls made by other processes, the collectors
  - C{reading}: sweeps and counter readings on a reactor; does not depend on pages
  - C{series}: counters over time: metric families, databases, history, remote write and PromQL
  - C{events}: state that survives the process, notifications
  - C{web}: pages, REST, server-sent events, Prometheus metrics

C{garbage}, C{iterations} and C{process} measure the process, by families of C{series}. C{files} and
C{config} use all but C{web}. C{config} makes a configuration from what C{configfile} reads, and
C{configvalues} checks the values. C{whatif} evaluates a history by a configuration.
"""
