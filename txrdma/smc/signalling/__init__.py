"""
Detection that both ends support SMC, before any byte is sent.

What all carriers use:

 - C{interfaces}: the interface of carriers.
 - C{owners}: local TCP sockets and the users that own them, by sock_diag or C{/proc/net/tcp}.
 - C{peeridentity}: process, user or host of a TCP peer, as the kernel reports it.
 - C{silence}: peers that did not answer a handshake: how many are stored (C{MOST}), and how long they get
   plain TCP at once (C{SPAN}).
 - C{clientports}: local ports of clients that bind before they connect: drawn at random, else by the kernel.
 - C{dialing}: TCP clients whose sockets a carrier prepares before they connect.

Carriers:

 - C{local}: the carrier C{local} of listeners: receives announcements of processes of this host; limits for
   processes of this user and of others, and for announcements that are not followed by a connection.
 - C{localclient}: the connection by which a process announces its connections to a listener; how long it
   waits for an answer (C{ANSWER_SECONDS}, C{LONGEST_WAIT}), and what is silence if the client does not wait
   (C{GIVEN_UP_SECONDS}).
 - C{localsignal}: the carrier C{local} of one client's connection: announces it again if its port is in use.
 - C{neighbours}: the carrier C{local} of listeners for other network namespaces (C{runtime=}), with proofs of
   addresses.
 - C{netns}: the client's side of C{neighbours}: the search for a listener (C{ANSWER_SECONDS} of
   C{localclient}, or C{LONGEST_WAIT} if the client is busy), and how long an address counts as without one
   (C{_ABSENT_SECONDS}).
 - C{configured}: the carrier of C{peer=smc}: the endpoint string states that the peer supports SMC; also
   accepted connections that nobody has announced, for C{tcpoption}.
 - C{tcpoption}: the carrier C{option}: the TCP option of RFC 7609 in SYNs.
 - C{option}: the eBPF program that adds and reads this option.
"""
