"""
Verbs devices by name, and their completions on a reactor.

C{_busypoll} decides how long a reader of completions busy-polls on other reactors; C{polling} is the reactor
that polls, with a limit of its own; C{pyverbs} provides kernel devices.
"""
