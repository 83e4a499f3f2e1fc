"""
Protocol cores of the communication manager: state machines, their events, and a dispatcher, without I/O.

Modules, lowest first:

 - C{events}: what cores report.
 - C{exchange}: what all cores have in common: retransmissions, their time-outs, delays by MRAs of the peer,
   and the limits of all these.
 - C{opening}, C{alternate}, C{closing}: the parts of a connection; C{sidr}.
 - C{connection}: all parts together; C{dispatcher}: all connections of an end port.
"""
