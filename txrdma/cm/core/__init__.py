"""
Protocol cores of the communication manager: state machines, their events, and a dispatcher, without I/O.

Modules, lowest first:

 - C{events}: what cores report.
 - C{exchange}: what all cores have in common: retransmissions, their time-outs, delays by MRAs of the peer,
   and the limits of all these.
 - C{opening}: REQ, REP, RTU; also when both ends connect at once.
 - C{alternate}: alternate paths: LAP and APR, and migration.
 - C{closing}: DREQ, DREP and the time-wait.
 - C{sidr}: one service ID resolution: its request and its answer.
 - C{connection}: opening, alternate paths and closing together.
 - C{dispatcher}: all connections, listeners and resolutions of an end port: finds that of a message, detects
   repeated and stale ones, chooses the listener of a request (C{match}) and the path of each message to send,
   limits connections in progress (BACKLOG) and stored answers to SIDR_REQs.
"""
