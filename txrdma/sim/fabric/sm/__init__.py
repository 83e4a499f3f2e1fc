"""
A simulated subnet manager and its subnet administration (SA).

 - C{subnet}: the nodes and agents that SM and SA use.
 - C{routing}: shortest paths, as forwarding tables.
 - C{manager}: assigns LIDs, activates ports, sets tables.
 - C{election}: which of several SMs is master: priorities, polls (C{POLL_SECONDS}, C{POLLS}), handover.
 - C{sarecords}: records of nodes, and matching with queries.
 - C{sapaths}: PathRecords and TraceRecords.
 - C{sagroups}: multicast groups (C{MOST_GROUPS}), services and subscriptions.
 - C{sa}: the SA: answers queries and sends reports; limit of paths in an answer (C{MOST_PATHS}).
"""
