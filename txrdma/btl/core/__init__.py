"""
Reliable messages over several unreliable paths, without I/O.

Modules, lowest first: C{path}, C{window}, C{receiving}, C{assembly} and C{ordering}, the parts of the state
of one peer; C{peer}; C{module}, all peers, with the fast path in C{shortcuts}.
"""
