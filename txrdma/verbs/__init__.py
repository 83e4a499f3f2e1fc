"""
Verbs devices by name, and their completions on a reactor.

Modules, lowest first:

 - C{devices}: opens the device of a string, and shares it in a process; plugins.
 - C{pinning}: how much memory a process may pin (C{ulimit -l}).
 - C{_sources}: the queues that a reader polls, and their handlers.
 - C{_busypoll}: how long a reader of completions busy-polls on other reactors than that of C{polling}, and
   whether the machine is too busy for it.
 - C{completions}: readers: arms queues, polls them, and passes completions on.
 - C{polling}: the reactor that polls, with a limit of its own.
 - C{pyverbs}: devices of the kernel.
 - C{strings}: the device strings C{pyverbs:NAME}.
"""
