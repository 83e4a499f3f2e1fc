"""
Conversations between two real processes, by which streams are held to TCP.

What TCP delivers every stream delivers, and both protocols see the same calls in the same order with the same
reasons. L{catalogue} has the conversations, as data; L{script} says in which words; L{provider} names the
endpoint strings that are compared. C{python -m txrdma.testing.streams} plays them.
"""
