"""
Link groups: links, their buffers, and the connections that use them.

Decisions without I/O (LLC):

 - C{_groupstate}: the data and the states of a group, its key, its events, and all timeouts (C{Timing}).
 - C{_keyexchanges}: CONFIRM RKEY and DELETE RKEY, which announce and withdraw buffers; they wait while a link
   is added.
 - C{_linkexchanges}: adding and deleting links; the largest number of links, and the attempts to replace a
   lost one with their intervals.
 - C{_linkgroup}: the whole group: processes LLC messages, lets waiting key exchanges go on, tests silent
   links by TEST LINK and decides which link has failed, and ends a group that has been idle for too long.

Links:

 - C{ports}: the local ends of links: ports of an endpoint's devices, their subnets, and the peer ID.
 - C{interfaces}: what a link requires of its connections, its group and the groups of the device.
 - C{attachment}: the verbs objects of a link: depths of its queues, timeouts and hop limit of its queue pair.
 - C{sendscheduler}: when the queued bytes of a link's connections are sent, and why a link has failed.
 - C{closenotifier}: when C{connectionLost} of applications is called, as with TCP.
 - C{link}: one link: receives messages, passes CDC to flows and LLC to the group, flushes written bytes if
   that takes long, reposts receives.
 - C{failover}: the ports of additional links, and moving of connections to another link with the
   unacknowledged messages that L{txrdma.smc.flow.sendqueue} has retained.

Groups:

 - C{buffers}: memory for the rings of connections, in remote memory buffers (RMBs); their sizes and limits.
   L{txrdma.smc.flow.closing} decides when a ring may be reused.
 - C{group}: one group: executes what C{_linkgroup} decides, and gives links and buffers to connections.
 - C{ratelimiter}: how many groups may be created in a time.
 - C{pollthread}: the thread that polls adapters while SMC is not in use.
 - C{groups}: all groups of a device: which group a connection gets, the limit C{maxgroups}, sizes of rings by
   number of connections, and when groups are suspended, resumed and closed.
"""
