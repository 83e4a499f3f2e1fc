"""
Link groups: links, their buffers, and the connections that use them.

 - C{_linkgroup}, C{_linkexchanges}, C{_keyexchanges} and C{_groupstate} decide without I/O: adding and
   deleting links, exchanging keys, testing silent links, timeouts.
 - C{link} and C{sendscheduler} move bytes over one link; C{failover} moves connections to another one, with
   the unacknowledged messages that L{txrdma.smc.flow.sendqueue} has retained.
 - C{buffers} has the rings of connections; L{txrdma.smc.flow.closing} decides when a ring may be reused.
 - C{groups} and C{group} create, find, suspend and close groups.
"""
