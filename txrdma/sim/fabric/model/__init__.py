"""
The state of a simulated subnet: nodes, ports and links.

 - C{nodes}: nodes, ports, states and modes of links, initial attributes.
 - C{counters}: counters of a port, which grow with time.
 - C{forwarding}: which port a switch sends a LID's packets to.
 - C{adaptive}: tables of adaptive routing.
 - C{pkeys}: P_Key tables.
 - C{modules}: what cables report.
"""
