"""
Verbs devices by name, and their completions on a reactor.

Modules, lowest first:

 - C{devices}: opens the device of a string, by a plugin, and shares it in a process.
 - C{pinning}: how much memory a process may pin (C{ulimit -l}); transports choose their shares
   (C{PINNED_SHARE}).
 - C{_sources}: the queues that a reader polls, and their handlers.
 - C{_busypoll}: how long a reader of completions busy-polls (C{MOST_SECONDS}) on other reactors than that of
   C{polling}, and whether the machine is too busy for it (C{CROWDED_SHARE}).
 - C{completions}: readers: arms queues, polls them (C{_MOST_POLLS} in an iteration), and passes completions
   on.
 - C{polling}: the reactor that polls, with a limit of its own (C{SPIN_SECONDS}).
 - C{pyverbs}: devices of the kernel.
 - C{strings}: the device strings C{pyverbs:NAME}.
"""
