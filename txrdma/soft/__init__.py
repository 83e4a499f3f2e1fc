"""
The software RDMA device.

Subpackages and modules, lowest first:

 - C{core}: memory and its keys, completion queues, queue pairs; what routes have in common.
 - C{shared}: the route through memory that processes of one host share.
 - C{host}: UDP port 4791 and queue pair 1, shared by the processes of a host.
 - C{rc}: the RoCE v2 route, over UDP: reliable connections and datagrams as packets.
 - C{objectlimits}: the largest numbers and sizes of verbs objects of a device (C{LIMITS}), and their checks.
 - C{hostinterfaces}: network interfaces of this host, and their changes, as L{txrdma.ports.network} reports
   them.
 - C{ports}: one port: its GIDs, attributes, MTU, events, and checks of paths.
 - C{opening}: opens the sockets and routes of a port; which UDP ports a device tries (C{udpPorts}), and when
   one counts as taken.
 - C{device}: a device: chooses the route of each queue pair among those that C{opening} has opened, and when
   a number is used again (C{_NUMBERS_REMEMBERED}).
 - C{strings}: the keys of C{soft:} device strings.
"""
