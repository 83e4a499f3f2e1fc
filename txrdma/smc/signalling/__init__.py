"""
Detection that both ends support SMC, before any byte is sent.

What all carriers use:

 - C{interfaces}: the interface of carriers.
 - C{owners}: local TCP sockets and the users that own them, by sock_diag or C{/proc/net/tcp}.
 - C{peeridentity}: process, user or host of a TCP peer, as the kernel reports it.
 - C{silence}: peers that did not answer a handshake, and how long they get plain TCP at once.
 - C{clientports}: local ports of clients that bind before they connect.
 - C{dialing}: TCP clients whose sockets a carrier prepares before they connect.

Carriers:

 - C{local}: the carrier C{local} of listeners: receives announcements of processes of this host, and limits
   them.
 - C{localclient}: the connection by which a process announces its connections to a listener, and how long it
   waits for an answer.
 - C{localsignal}: the carrier C{local} of one client's connection.
 - C{neighbours}: the carrier C{local} of listeners for other network namespaces (C{runtime=}), with proofs of
   addresses.
 - C{netns}: the client's side of C{neighbours}: the search for a listener, with the times of C{localclient}
   and C{silence}, and how long an address counts as without one.
 - C{configured}: the carrier of C{peer=smc}: the endpoint string states that the peer supports SMC.
 - C{tcpoption}: the carrier C{option}: the TCP option of RFC 7609 in SYNs.
 - C{option}: the eBPF program that adds and reads this option.
"""
