"""
Hostile peers: simulations in which one host follows a protocol, except for some of its messages.

Three simulated hosts have real protocol stacks: a victim, an honest peer of the victim, and a hostile one. A
plan defines which messages of the hostile host are sent twice, too early, too long or never. The honest peer
must not be affected: its connections transfer messages and end in order. At the end the victim must have
released everything, and must have logged only exceptions that report a failed peer.

L{plans} draws the mutations, L{tampering} applies them, L{wiring} intercepts the messages of a host, and
L{scenario} runs a plan. Each protocol has its own module.
"""
