"""
Agents of simulated nodes: subnet management, performance management and others.

 - C{sma}: subnet management: answers SMPs.
 - C{portsetting}: which fields of PortInfo a Set changes, and what that does to the link.
 - C{mkeys}: M_Keys, their protection and lease.
 - C{sminfo}: the SMInfo of a subnet manager.
 - C{pma}: performance management: reads and clears counters.
 - C{congestion}: congestion control settings.
 - C{vendor}: ping, system statistics, firmware, serial numbers and cables.
"""
