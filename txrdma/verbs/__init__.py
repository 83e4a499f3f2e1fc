"""
Verbs devices by name, and their completions on a reactor.

C{_busypoll} decides how long a reader busy-polls; C{polling} is the reactor that polls; C{pyverbs} provides
kernel devices.
"""
