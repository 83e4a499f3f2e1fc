"""
Offers and agreements of two ends, and the options of an endpoint; no I/O.

 - C{offer}: what a client proposes, which device, version and limits a server chooses, and why an offer or an
   answer is declined.
 - C{options}: options of an endpoint with their defaults and ranges, such as C{links}, C{maxgroups}, memory
   and handshakes in progress.
"""
