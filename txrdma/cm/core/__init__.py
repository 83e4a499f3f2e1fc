"""
Protocol cores of the communication manager: state machines, their events, and a dispatcher, without I/O.

Modules, lowest first:

 - C{events}: what cores report.
 - C{exchange}: what all cores have in common: retransmissions, their time-outs, delays by MRAs of the peer,
   and the limits of these (C{LONGEST_DELAY}, C{LONGEST_RESPONSE}).
 - C{opening}: REQ, REP, RTU; also when both ends connect at once.
 - C{alternate}: alternate paths: LAP and APR, and migration.
 - C{closing}: DREQ, DREP and the time-wait.
 - C{sidr}: one service ID resolution: its request and its answer.
 - C{connection}: opening, alternate paths and closing together.
 - C{dispatcher}: all connections, listeners and resolutions of an end port: finds that of a message, repeated
   and stale ones, chooses listeners (C{match}), limits requests (C{BACKLOG}, C{MOST_SIDR_REQUESTS}).
"""
