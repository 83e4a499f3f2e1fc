"""
Link groups: links, their buffers, and the connections that use them.

 - C{_linkgroup}, C{_linkexchanges}, C{_keyexchanges} and C{_linkstate} decide without I/O: adding and
   deleting links, exchanging keys, testing silent links, timeouts.
 - C{link} and C{sendscheduler} move bytes over one link; C{failover} moves connections and unacknowledged
   messages to another one.
 - C{groups} and C{group} create, find and close groups.
"""
