"""
Groups of processes with collective operations, as in MPI: see L{txrdma.btl.groups.group.Group}.

Modules, lowest first:

 - C{errors}: the error of a group that has failed.
 - C{terms}: parameters of a member from its environment, keys, and the largest group (C{MOST_MEMBERS}).
 - C{_algorithms}: the messages of each operation, without I/O; from which length on other algorithms are
   used.
 - C{reductions}: sums and the like of elements, by NumPy or Python.
 - C{rendezvous}: where members meet and get each other's addresses.
 - C{_slots}: the memory of members on one host (C{AREA_BYTES} for a step of each), without I/O.
 - C{_sharedalgorithms}: the same operations in that memory, without I/O; up to which length members reduce
   everything themselves (C{SHORT_REDUCTION}).
 - C{members}: the connections of a member, and the failure of the whole group.
 - C{sharing}: whether members share memory, and how long they poll it (C{POLL_SECONDS}).
 - C{joining}: a member joins: its connections to all others, within a time limit (C{JOIN_SECONDS}).
 - C{group}: the operations.
 - C{launching}: processes of a group, for C{txrdma btl-run}; how they are ended when one fails
   (C{GRACE_SECONDS}).
"""
