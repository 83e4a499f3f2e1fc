"""
Model of a subnet with its nodes, ports and links; sweeps that discover it; and checks of the result.

Model and text:

 - C{model}: nodes, ports and links, and problems of a sweep.
 - C{linkspeeds}: lane speeds on one scale, with their rates in Gbit/s.
 - C{metricnames}: names of counters as metrics.
 - C{nodenames}: node-name maps of infiniband-diags and OpenSM.
 - C{steadynames}: names of nodes for time series, which change only when a new name has lasted.
 - C{targets}: parses names of ports: LIDs, GIDs, GUIDs, directed routes.
 - C{texts}: the first of several names ("a, b, c and 15 more"), and reading of text files, also compressed
   ones.
 - C{chassis}: nodes that are boards of one machine.
 - C{pace}: pauses in long computations.

Sweeps:

 - C{sweepbounds}: limits of nodes, ports, hops and problems of a sweep (C{MOST_NODES}, C{MOST_PROBLEMS}), and
   which branch it leaves out beyond them.
 - C{discovery}: the sweep by directed routes, with its limits of outstanding SMPs (C{MAX_OUTSTANDING},
   C{MAX_PER_NODE}).
 - C{asking}: queries of node attributes for C{lidsweep} and C{neighbourhood}, with answers stored in the
   model; whether nodes of a model still have their LIDs.
 - C{sasweep}: the sweep by records of the SA.
 - C{lidsweep}: the sweep by LIDs: links from the SA, attributes from the nodes.
 - C{neighbourhood}: a sweep of a node and its neighbours only.
 - C{parts}: a part of a fabric that was already swept.
 - C{refreshing}: queries some nodes again, and updates the model.

Counters of ports:

 - C{rates}: sums, differences and rates of counters; data rates of links.
 - C{portcounters}: growth of one port's counters: resets, saturation, and restarts of nodes.
 - C{errorcounters}: reads error counters of all ports, and compares them with thresholds of infiniband-diags
   (the file C{DEFAULT_THRESHOLDS}).
 - C{errorcorrection}: counters of forward error correction, and findings of these.
 - C{congestion}: which ports wait for credits too long (C{CONGESTED}), and the causes.
 - C{linktraffic}: links with the most traffic, in Gbit/s.

Findings:

 - C{health}: findings about links below their best mode, identifiers, subnet managers and counters; the class
   C{Finding}.
 - C{advice}: severity and advice by kind of finding (C{ADVICE}).
 - C{rootcause}: which finding explains another one.
 - C{managerwatch}: whether the master subnet manager is silent, hung (C{STILL_SECONDS}) or new.
 - C{cables}: cables and modules: how they are read, and when they are too hot (C{HOT_CELSIUS}), too dark or
   exchanged.
 - C{cableplan}: a plan of cables, and what differs from it.
 - C{inventory}: rows with firmware, boards, uptime and serial numbers of nodes.

Forwarding tables:

 - C{routing}: forwarding tables, and paths of packets hop by hop.
 - C{tracerecords}: paths as the SA computes them.
 - C{adaptive}: tables of switches that choose among several ports.
 - C{routeuse}: the LIDs that are routed over each link, and whether links are used evenly (C{txrdma routes
   --balance}).
 - C{creditloops}: whether virtual lanes of links wait for each other in a cycle; how many paths are followed
   (C{MOST_SOURCES}, C{MOST_PATHS}).
 - C{routechecks}: findings about forwarding tables: LIDs that are not reached, credit loops, links used
   unevenly (C{_UNEVEN}).
 - C{tables}: reads tables, firmware and cables of all nodes, and finds what disagrees (P_Keys, virtual lanes,
   firmware).
 - C{blastradius}: which hosts, paths and bandwidth are lost without cables or switches.
 - C{lossjson}: these losses as JSON.

Files and other programs:

 - C{snapshots}: fabrics as JSON files.
 - C{differences}: differences between two snapshots.
 - C{recording}: a snapshot with the answers of a fabric, from which requests of checks are answered.
 - C{recorder}: makes recordings: reads all tables and counters that the checks need.
 - C{slurm}: topology files of Slurm, and host lists.
 - C{slurmjobs}: jobs of Slurm and their nodes, by C{squeue}.
"""
