"""
Shared code of commands: options, choice of devices, sessions with a fabric, tables.

All commands:

 - C{registry}: the list of commands with their groups and summaries (C{COMMANDS}).
 - C{options}: base classes of options, help, and exit status after Ctrl-C (C{INTERRUPTED}).
 - C{values}: parsers of values: seconds, counts, port numbers.
 - C{interruption}: Ctrl-C during long operations.
 - C{progress}: progress of long operations, with pauses.
 - C{tables}: tables by the package C{rich}.
 - C{rows}: long lists as tables, columns, JSON or CSV.
 - C{installation}: version, and whether cores are compiled.

This host:

 - C{devicechoice}: the device that C{device=auto} would select, with reasons.
 - C{devicedescriptions}: devices for JSON.
 - C{watching}: queries of all processes of this user, once or repeatedly.
 - C{counted}: sums and rates of counters of processes.

Fabrics:

 - C{session}: options of commands that send management datagrams, the open port, and targets.
 - C{sweeping}: options of a sweep or a snapshot, and the fabric.
 - C{showing}: a port that prints its datagrams.
 - C{serving}: starts the servers of C{ping} and C{sysstat} (L{txrdma.mad.vendor} has their handlers).
 - C{attributefields}: attributes and fields by name, and their values.
 - C{packets}: management datagrams in packets of a capture.
 - C{portchanges}: the operations of C{portstate} and the fields of PortInfo that each sets (C{STATES});
   C{portstate} decides whether a change may be made.
 - C{rehearsal}: runs a rehearsal on a simulated clock.
 - C{rehearsalfile}: files of planned faults.
"""
