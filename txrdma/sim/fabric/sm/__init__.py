"""
A simulated subnet manager and its subnet administration (SA).

 - C{subnet}: the nodes and agents that SM and SA use.
 - C{routing}: shortest paths, as forwarding tables.
 - C{manager}: assigns LIDs, activates ports, sets tables.
 - C{election}: which of several SMs is master: priorities, polls, handover.
 - C{sarecords}: records of nodes, and matching with queries.
 - C{sapaths}: PathRecords and TraceRecords.
 - C{sagroups}: multicast groups, services and subscriptions, with their limits.
 - C{sa}: the SA: answers queries and sends reports; limit of paths in an answer.
"""
