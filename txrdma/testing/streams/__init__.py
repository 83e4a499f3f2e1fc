"""
Conversations between two real processes, which compare streams with TCP.

Every stream must deliver what TCP delivers, and both protocols must see the same calls in the same order with
the same reasons. L{catalogue} contains the conversations as data; L{script} defines their language;
L{provider} lists the endpoint strings that are compared. C{python -m txrdma.testing.streams} runs them.
"""
