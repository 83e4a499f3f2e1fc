"""
Groups of processes with collective operations, as in MPI: see L{txrdma.btl.groups.group.Group}.

Modules, lowest first:

 - C{errors}; C{terms}, the parameters of a member
 - C{_algorithms}: the messages of each operation, without I/O; C{reductions} of elements
 - C{identity}: both ends of a TCP connection prove their ranks; C{rendezvous}, where members meet
 - C{_slots}: the memory of members on one host, C{_sharedalgorithms}: the same operations in it, both without
   I/O; C{sharing}: sharing of that memory, and polling
 - C{members}: the connections of a member; C{joining}; C{group}, the operations
 - C{launching}: processes of a group, for C{txrdma btl-run}
"""
