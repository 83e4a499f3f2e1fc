"""
Offers and agreements of two ends, and the options of an endpoint; no I/O.

 - C{offer}: what a client proposes, which device, version and limits a server chooses, why either declines,
   and the bounds of negotiated limits (links, connections of a group, UEIDs).
 - C{options}: options of an endpoint with their defaults, and ranges of numbers (C{RANGES}): C{links},
   C{maxgroups}, C{maxmemory}, C{handshakes}, sizes of rings.
"""
