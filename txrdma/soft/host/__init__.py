"""
UDP port 4791 and queue pair 1 of one IP address, shared by the software devices of all processes of a user.

A device sends from a UDP port of its own, where other software devices that know it, as those of SMC-R and
BTL do, reach it as well. They depend on no other process. Peers that know an address only (kernels, adapters,
and all peers of the communication manager) send to port 4791, which is described here.

I{Shares.} Each device has a I{share}, a number from 1 to 254. Its queue pair numbers and its CM communication
IDs begin with that number, so that a packet names the device to which it belongs. Its own UDP port follows
from the share (L{txrdma.soft.core.netdev.portOfShare}). So the kernel gives each share of an address to one
device only, and a device on the same host is found in shared memory by its address and share.

I{Sockets.} A device opens a UDP socket at port 4791 (SO_REUSEPORT) when it first needs one
(L{txrdma.soft.rc.wellknown}). A filter (classic BPF, SO_ATTACH_REUSEPORT_CBPF, which needs no privilege)
selects the socket of a packet by the share of its destination queue pair; for CM messages to queue pair 1, by
that of the remote communication ID (C{_filter}).

I{The coordinator.} One device of an address is the coordinator: the one that listens at the abstract UNIX
socket of the address. The others, the members, each have a line to it. The kernel reports the user of both
ends of a line; a process of another user is refused. The coordinator knows all members and the service IDs
that they serve (C{_coordinator}). It installs the filter, and receives all packets that the filter assigns to
no other device: REQs and SIDR_REQs, which name a service, and management datagrams of other classes. It
forwards those to the device that serves them. A device that receives a packet of another share passes it to
the coordinator, so a filter that is missing or out of date costs time, but no packets.

I{Positions.} The kernel numbers the sockets of a port, and renumbers them when one closes. The coordinator
finds out each member's number: it sends a probe to each position, and the receiver reports it.

I{Services.} A service ID is claimed by the name of another abstract UNIX socket, which the kernel releases
when the process ends. So two processes cannot listen for the same service, and no process has to be asked.

I{Takeover.} When the coordinator's process ends, the kernel closes its lines. Each member then tries to
listen at the address's name; one succeeds, and the others connect to it and report their services again.
Connections are not affected: their packets reach their own sockets, and messages that were lost are
retransmitted.

I{Early messages.} The answer to the first request of a new member may come before the coordinator has read
that it is a member, and after a takeover a process may be too busy to report. So the coordinator stores
messages for services that are claimed, and for shares whose UDP ports are in use, until their devices
report, but only for C{AWAITED_SECONDS}: senders repeat them.

I{Stopped processes.} Members ping the coordinator. One that does not answer twice is replaced: its members
use the next of 16 names. When it runs again, its lines have ended, or another device has connected to tell
it; it finds the coordinator with a later name, and becomes a member.

I{Failures.} A member that is stopped or busy does not answer probes; until it does, its packets are
forwarded. Packets to a member that does not read its line are dropped while messages are queued, as with a
full socket buffer. If a process of another user has the name of the address or port 4791, queue pair 1 and
connections with peers that only know port 4791 fail; others are not affected.

Modules, lowest first:

 - C{names}: names of UNIX sockets that claim an address, a service ID or a share.
 - C{_messages}: messages between a coordinator and its members, and the longest forwarded packet.
 - C{_management}: the destination of a datagram for queue pair 1, by service or communication ID.
 - C{_filter}: the BPF program that selects the socket of a packet.
 - C{_coordinator}: what the coordinator knows of members, their services (at most C{SERVICES}) and positions
   (C{ROUNDS} of probes).
 - C{lines}: lines between a coordinator and a member, on a UNIX connection.
 - C{forwarding}: passes packets on, and stores those for processes that have not reported yet (at most
   C{MOST_AWAITED}, for C{AWAITED_SECONDS}).
 - C{member}: one device's part: finds or becomes the coordinator, pings it (C{PING_SECONDS}), replaces a
   stopped one by that of the next name (C{NAMES}).
"""
