"""
Measurements of latency and bandwidth between any two devices.

Modules, lowest first:

 - C{plan}: parameters of tests, settings of queue pairs, layout of memory; largest message and depth
   (C{LARGEST}, C{DEEPEST}).
 - C{statistics}: percentiles and histograms.
 - C{measurement}: the result of a test.
 - C{report}: results as JSON and CSV, and parsing of sizes.
 - C{link}: a queue pair with its memory and receives; timeouts (C{ACK_TIMEOUT}).
 - C{activity}: what the roles of a test have in common: requests, counts, stalls.
 - C{engine}: the roles: who sends, measures and answers.
 - C{bootstrap}: messages between client and server, as lines of JSON.
 - C{conversation}: exchanges these over a stream, with a time limit for answers (C{ANSWER_SECONDS}).
 - C{session}: client and server of measurements, the server's limits (C{Limits}), and how long results may
   take.
 - C{run}: a series of tests and their sizes.
 - C{compatible}: the protocol of C{ibv_rc_pingpong} and C{ibv_ud_pingpong}.
"""
