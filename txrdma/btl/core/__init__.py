"""
Reliable messages over several unreliable paths, without I/O.

Modules, lowest first: C{path}, C{window} (also when a path is silent, and when a peer is given up),
C{receiving}, C{assembly} and C{ordering}, the parts of the state of one peer; C{peer}; C{timetable}, the
queue of the peers' deadlines; C{module}, all peers, with the fast path in C{shortcuts}. C{flow}, the windows
of tags in bytes, is used by transports.
"""
