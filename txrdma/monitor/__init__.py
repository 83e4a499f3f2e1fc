"""
The fabric monitor: polls a subnet, stores its counters, and reports faults.

Its parts, lowest first; its clock is L{txrdma.tap.steadyclock}, its services are in L{txrdma.tap}:

 - C{supervisor}: periodic tasks, and when one is late (C{LATE_SECONDS}) or has failed.
 - C{diagnosis}: findings and events: error thresholds, lost nodes and links, the log and the journal.
 - C{collecting}: calls made by other processes, the collectors.
 - C{reading}: sweeps and counter readings on a reactor; does not depend on pages.
 - C{series}: counters over time: metric families, databases, history, remote write and PromQL.
 - C{events}: notifications, and the state that survives the process.
 - C{garbage}: when the process collects garbage (C{COMPLETE_SECONDS}).
 - C{iterations}: how long the reactor is busy in each iteration.
 - C{process}: durations of garbage collections and iterations as metrics, once for all fabrics.
 - C{files}: files for other programs: Slurm's topology, unfit hosts, node names.
 - C{configvalues}: checks of single values of the configuration.
 - C{configfile}: the keys of the file (C{SCHEMA}), and all mistakes with their lines.
 - C{config}: the configuration made of these, and secrets from files.
 - C{whatif}: evaluates a history by a configuration: alerts that it would have sent.
 - C{web}: pages, REST, server-sent events, Prometheus metrics.
"""
