"""
Vocabulary of InfiniBand and RoCE: types, paths, headers, packets and captures.

 - C{types}: GID, GUID, LID, MTU, MAC address, keys and queue pair numbers.
 - C{times}: encoded times: RNR timer, ACK timeout.
 - C{verbs}: types of verbs: states, access rights, attributes, work requests, completions, events.
 - C{path}: paths and directed routes, as values and as text.
 - C{headers}: headers from BTH to payload, opcodes and NAK codes.
 - C{linkheaders}: LRH and other headers that only InfiniBand links have.
 - C{internet}: Ethernet, IP and UDP headers, and their checksum.
 - C{roce}: RoCE v2 packets and their ICRC.
 - C{pcap}: writes capture files.
 - C{captures}: reads capture files (pcap and pcapng).
"""
