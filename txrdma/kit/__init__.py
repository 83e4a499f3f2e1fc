"""
Utilities that do not depend on RDMA.

Bytes and values:

 - C{wire}: declares binary layouts.
 - C{wirefield}: one field of a layout.
 - C{wirecode}: compiles methods of layouts.
 - C{rawfields}: reads and writes single fields of encoded layouts.
 - C{buffers}: types of buffers, for static checkers.
 - C{values}: dataclasses that import quickly.
 - C{machines}: state machines that import quickly.
 - C{compiling}: instructions for mypyc.
 - C{lazynames}: names of a package that are imported when they are used.

Strings:

 - C{strings}: device, port and endpoint strings: syntax, sizes, times; texts of peers, escaped or without
   unprintable characters; natural order of names.
 - C{serverstrings}: whether a server endpoint string is valid, and accepts connections from this host only.

Time and the reactor:

 - C{forwardclock}: the clock of protocol cores, which never decreases (that of the fabric monitor is
   L{txrdma.tap.steadyclock}).
 - C{deadlines}: many deadlines on one timer.
 - C{delayedcalls}: delayed calls that other code may cancel.
 - C{backoff}: pauses between requests to peers that do not answer.
 - C{listeners}: listeners of events.
 - C{cancelling}: attempts to connect: errors when they are cancelled, and their end after an exception.
 - C{shutdown}: closes connections before the reactor stops, within a time limit (C{LEAVING_SECONDS}).
 - C{twistedprivate}: private names of Twisted in use, and a check that they exist.

Logs:

 - C{logs}: texts of errors with advice, and logging that is rate-limited (a line a minute for each subject).
 - C{connectionlog}: the event at the end of each connection, and how many are written (C{BURST},
   C{PER_SECOND}).

Connections:

 - C{shares}: the part of a limited table that one client may use (C{CLIENT_SHARE}).
 - C{tcpkeepalive}: keepalive of TCP.
 - C{refusals}: connections that a server refuses.
 - C{proofs}: both ends of a connection prove that they have a key (C{PROOF_SECONDS}); limits of clients that
   have not (C{MOST_UNPROVED}).
 - C{httprequests}: HTTP requests with limits of time and size (C{MOST_RECEIVED}).
 - C{programs}: output of other programs, with limits.

Web sites:

 - C{webaccess}: tokens, passwords and proxies of a web site; limits of wrong passwords (C{MOST_GUESSES}) and
   of attempts to log in.
 - C{passwords}: users with roles, and hashes of their passwords.
 - C{pathprefix}: pages below a path of a proxy.

Time series and storage:

 - C{promql}: answers of Prometheus' HTTP API, and how many series one may have (C{MOST_SERIES}).
 - C{remotewrite}: samples in the encoding of Prometheus' remote write.
 - C{remotesender}: sends them, or stores them until they can be sent: pauses (C{FIRST_PAUSE}), limits
   (C{MOST_QUEUED}), and why samples were lost.
 - C{spool}: a queue on disk that is limited in size.
 - C{lease}: the right of one process among several to do something, and how long it lasts (C{LEASE_SECONDS},
   or less so that a holder is replaced within a time).

Graphs:

 - C{graphs}: breadth-first search.
"""
