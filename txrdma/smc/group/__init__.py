"""
Link groups: links, their buffers, and the connections that use them.

Decisions without I/O (LLC):

 - C{_groupstate}: the data and the states of a group, its key, its events, and its timeouts (C{Timing};
   C{timingOn} in C{groups} takes those of TEST LINK from the kernel's TCP keepalive).
 - C{_keyexchanges}: CONFIRM RKEY and DELETE RKEY, which announce and withdraw buffers: they wait while a link
   is added; at most C{MOST_OVERDUE} buffers are kept for a late answer to DELETE RKEY.
 - C{_linkexchanges}: adding and deleting links: their largest number, and the attempts to
   replace a lost one (C{MOST_TRIES}), with intervals that double.
 - C{_linkgroup}: the whole group: processes LLC messages, lets waiting key exchanges go on, tests silent
   links by TEST LINK and decides which has failed, and ends a group that has been idle for too long.

Links:

 - C{ports}: the local ends of links: opens the devices of an endpoint (C{a+b}), those that can be opened;
   their ports and subnets, and the peer ID.
 - C{interfaces}: what a link requires of its connections, its group and the groups of the device.
 - C{attachment}: the verbs objects of a link: depths of its queues (C{WINDOW}: messages in flight), timeouts
   and hop limit of its queue pair.
 - C{sendscheduler}: when queued bytes are sent: in the next iteration, or after C{FLUSH_SECONDS} of other
   work; texts of errors; how long closing a link waits for its device (C{_DRAIN_SECONDS}).
 - C{closenotifier}: when C{connectionLost} of applications is called, as with TCP.
 - C{link}: one link: passes received CDC to flows and LLC to the group, flushes in between if that takes
   long, reposts receives, and waits for the address of the peer's buffer (C{PREPARING_SECONDS}).
 - C{failover}: the ports of additional links, and moving of connections to another link with the
   unacknowledged messages that L{txrdma.smc.flow.sendqueue} has retained.

Groups:

 - C{buffers}: memory for the rings of connections, in remote memory buffers (RMBs): how many and how large
   (C{MAX_BUFFERS}, C{LARGEST_BUFFER}, C{PINNED_RING}), and the limit C{maxmemory}.
 - C{group}: one group: executes what C{_linkgroup} decides, gives links and buffers to connections, and
   smaller rings if there is no memory. L{txrdma.smc.flow.closing} decides when a ring may be reused.
 - C{ratelimiter}: how many groups may be created in a time (C{AT_ONCE} in C{SPAN} seconds); others wait.
 - C{pollthread}: the thread that polls adapters while SMC is not in use.
 - C{groups}: all groups of a device: which group a connection gets, the limit C{maxgroups}, sizes of rings
   (C{RINGS}), suspending and resuming, how long a stopping process waits (C{STOPPING_SECONDS}).
"""
