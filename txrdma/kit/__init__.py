"""
Utilities that do not depend on RDMA.

 - L{txrdma.kit.wire}, L{txrdma.kit.rawfields}: binary layouts, and single fields of encoded messages.
 - L{txrdma.kit.values}, L{txrdma.kit.machines}: dataclasses and state machines that import quickly.
 - L{txrdma.kit.deadlines}: many deadlines on one timer.
 - L{txrdma.kit.graphs}: breadth-first search.
 - L{txrdma.kit.strings}: parameters of endpoint and device strings.
 - L{txrdma.kit.delayedcalls}: delayed calls that other code may cancel.
 - L{txrdma.kit.lazynames}: names of a package that are imported when they are used.
 - L{txrdma.kit.compiling}: instructions for mypyc.
 - L{txrdma.kit.proofs}: connections whose ends prove that they have a key.
 - L{txrdma.kit.backoff}: pauses between requests to peers that do not answer.
 - L{txrdma.kit.logs}: rate-limited logging; L{txrdma.kit.connectionlog}: the log event of each connection.
 - L{txrdma.kit.serverstrings}: checks of server endpoint strings.
 - L{txrdma.kit.httprequests}: HTTP requests with bounds of time and size.
 - L{txrdma.kit.webaccess}, L{txrdma.kit.pathprefix}: tokens and passwords of a web site; pages below a path.
 - L{txrdma.kit.passwords}: users with roles, and hashes of their passwords.
 - L{txrdma.kit.remotewrite}: samples in the encoding of Prometheus' remote write.
 - L{txrdma.kit.remotesender}: sends them, or stores them until they can be sent.
 - L{txrdma.kit.lease}: the right of one process among several to do something.
 - L{txrdma.kit.spool}: a queue on disk that is limited in size.
 - L{txrdma.kit.twistedprivate}: private names of Twisted in use, and a check that they exist.
"""
