"""
Hostile peers: simulations in which one host speaks a protocol correctly, but for some messages.

Three simulated hosts have real protocol stacks: a victim, an honest peer of the victim, and a hostile one.
A plan says which messages of the hostile host are sent twice, too early, too long or never. The honest peer
must not notice: its connections carry messages and end in order. At the end the victim must have released
everything, and must have logged no exception but those that report a failed peer.

L{plans} draws the mutations, L{tampering} applies them, L{wiring} finds the messages of a host, L{scenario}
plays a plan. There is one module for each protocol besides.
"""
