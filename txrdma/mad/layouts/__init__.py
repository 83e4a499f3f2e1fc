"""
Layouts of management datagrams: attributes, frames and values, each declared once, as in the specification.

Each module follows a chapter of InfiniBand Architecture vol. 1, and contains neither ports nor protocols.

What all have in common:

 - C{attributes}: the base class of attributes: classes, methods and calls (RPCS), text and JSON.
 - C{messages}: frames with headers, statuses, ClassPortInfo, Notice, InformInfo.
 - C{rmppformats}: whole RMPP packets by type, for programs that decode them.
 - C{values}: codes in attributes: widths, speeds, rates, states, capabilities.
 - C{capabilities}: capabilities of agents by class.
 - C{dump}: datagrams as text.

Attributes by class:

 - C{smp}: subnet management: NodeInfo, PortInfo, tables.
 - C{sa}: records of subnet administration, and queries.
 - C{components}: components of such queries, with their types.
 - C{pma}: performance management: counters of ports.
 - C{congestion}: congestion control.
 - C{baseboard}: baseboard management.
 - C{devices}: device management and SNMP tunnelling.
 - C{adaptive}: adaptive routing of NVIDIA's switches.
 - C{traps}: the details of notices.
"""
