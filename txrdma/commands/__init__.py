"""
The commands of C{txrdma}, one module each; C{common} and C{formats} are shared. C{common.registry} lists the
commands.

 - C{common}: what commands share: options, sessions, sweeps, tables.
 - C{formats}: output and input formats.
 - C{dissect}: a dissector of SMC in captures, for C{decode}.

On this host:

 - C{doctor}: checks the host's configuration (L{txrdma.verify.environment}).
 - C{devices}: RDMA devices.
 - C{resolve}: how a host and port become a service ID, a device and a path.
 - C{pnet}: the table of physical networks.
 - C{connections}: live connections of C{smc:} endpoints.
 - C{linkgroups}: SMC-R link groups.
 - C{smc_stats}: statistics of C{smc:} endpoints.
 - C{smc_option}: installs the eBPF program of SMC's TCP option.
 - C{cm_stats}: messages of communication managers.
 - C{btl_stats}: counters of the byte transfer layer.
 - C{btl_run}: runs a program as a group of processes.

Measuring:

 - C{verify}: runs contracts and measurements on devices (L{txrdma.verify}).
 - C{pingpong}: latency and bandwidth of verbs.
 - C{rping}: pings by RDMA, as librdmacm's.
 - C{btl_ping}: round trips over the byte transfer layer.

InfiniBand fabrics:

 - C{discover}: all nodes, ports and links, in several formats.
 - C{nodes}: nodes, and the inventory.
 - C{links}: links, and which could be faster.
 - C{cables}: cables and optical modules.
 - C{check}: faults of a fabric.
 - C{errors}: error counters above thresholds.
 - C{perfquery}: counters of ports: read, watched, cleared.
 - C{portstate}: shows and changes ports; refuses to take down a port on the path to the target without
   C{--force}; the order of C{--everywhere}.
 - C{routes}: forwarding tables, and the use of links.
 - C{trace}: the path of packets.
 - C{blast_radius}: what is lost without cables or switches.
 - C{ping}: whether a host answers.
 - C{sysstat}: a host's name and processors.
 - C{smpquery}: attributes of subnet management.
 - C{saquery}: records of the SA.
 - C{sminfo}: state of a subnet manager.
 - C{query}: any management call.
 - C{decode}: explains management datagrams and SMC conversations.
 - C{snapshot}: writes a fabric to a file.
 - C{diff}: differences between snapshots.
 - C{monitor}: findings and busiest links in a terminal.
 - C{demo_fabric}: the fabric monitor on a simulated fabric.
 - C{rehearse}: faults and alerts in a simulation, or over a history.
 - C{fabric_users}: users of the monitor's pages.
"""
