"""
Checks of this host and of its RDMA devices, for C{txrdma doctor} and C{txrdma verify}.

Nothing on the host is changed. Checks of the host, lowest first:

 - C{problems}: each kind of problem, why it matters, and the command that fixes it (C{REMEDIES}).
 - C{host}: reads files below a root folder.
 - C{deviceports}: device files, links, GIDs and MTUs of devices.
 - C{environment}: kernel modules, pyverbs, limits, sysctls and rights, with the least good values.

Checks of devices, lowest first:

 - C{checks}: results, and how a worker reports them.
 - C{subject}: the verified devices and ports.
 - C{transports}: endpoint strings of the verified streams.
 - C{quirks}: known failures and their explanations (C{KNOWN}).
 - C{suites}: contracts as test cases (C{SUITES}).
 - C{streams}: conversations over streams, compared with C{tcp:}.
 - C{serving}: the server for a remote client.
 - C{measuring}: the client: exchanges data and measures.
 - C{perftest}: measurements by perftest, its programs and time limits.
 - C{worker}: a process that runs one part.
 - C{supervisor}: starts workers, kills those that hang (C{_STALL_SECONDS}), and continues (C{_RESTARTS}).
 - C{report}: reports as JSON and Markdown, without names and addresses.
"""
