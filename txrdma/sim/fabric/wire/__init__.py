"""
The transport of management datagrams in a simulated subnet.

 - C{timetable}: scheduled calls on one timer.
 - C{traps}: notices that nodes send.
 - C{wire}: delivers datagrams over links to agents; losses, slow, busy and redirecting nodes.
 - C{madport}: a management port attached to a node.
"""
