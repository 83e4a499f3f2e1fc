"""
Monitors that are made to be killed: C{python -m txrdma.test.support.monitor.killing HISTORY LOG KILLS}.

For each line of its standard input, a number and the seconds that a process may live, it forks a process that
watches a simulated fabric, and prints that process' ID; when the process has ended it prints C{ended}. Hosts
are cut off and return by that number, each of them once, while a process runs: whatever a monitor finds of a
host has to be announced once by all processes together. To fork saves the time of all imports.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from random import Random
from typing import Any

from twisted.internet import selectreactor

HOSTS = 14
"""Hosts that are cut off in their turn: all but that of the monitor and that of the subnet manager."""

CONFIG = """
[web]
listen = ""

[history]
file = '{history}'

[poll]
interval = 0.1
sweep = 1
settle = 0.1
states = 1
survey = 0
notices = false

[findings]
clear = 0.1

[alerts]
delay = 0
group = 0
log = '{log}'
"""


def isCut(host: int, number: int, kills: int) -> bool:
    """True of a host that is cut off before the process of a number; each host is, for half of them."""
    first = (host - 1) * kills // (2 * HOSTS)
    return first < number <= first + kills // 2


def watch(history: str, log: str, kills: int, number: int, longest: float) -> None:
    """Watch the fabric, until the process is killed, C{longest} seconds from now or before."""
    from twisted.internet import reactor as theReactor

    from txrdma.monitor.config import parseConfig
    from txrdma.monitor.diagnosis.findinglog import FindingRules
    from txrdma.sim.fabric import SimulatedFabric
    from txrdma.sim.nets.fattree import fatTree
    from txrdma.tap.monitor import MonitorService

    reactor: Any = theReactor
    fabric = SimulatedFabric(reactor, fatTree(HOSTS + 2))

    def change(at: int) -> None:
        for host in range(1, HOSTS + 1):
            (fabric.cut if isCut(host, at, kills) else fabric.heal)(f"h{host:05}", 1)

    def changeSeen(at: int) -> None:
        """Change what the monitor has seen before: it tells nothing of hosts that it has never known."""
        if service.poller.fabric is None:
            reactor.callLater(0.02, changeSeen, at)
        else:
            change(at)

    change(number)
    config = parseConfig(CONFIG.format(history=history, log=log))
    rules = FindingRules({}, clearSeconds=config.rules.clearSeconds)  # found is found: there is no time
    service = MonitorService(reactor, replace(config, rules=rules), fabric.attach)
    reactor.callWhenRunning(service.startService)
    reactor.callLater(Random(number).uniform(0.1, longest / 2), changeSeen, number + 1)
    reactor.run()


def main(history: str, log: str, kills: int) -> None:
    """Fork and wait, line by line."""
    import txrdma.commands.demo_fabric  # noqa: F401  # with all that a monitor imports

    for line in sys.stdin:
        pid = os.fork()
        if not pid:
            number, longest = line.split()
            watch(history, log, kills, int(number), float(longest))
        print(pid, flush=True)
        os.waitpid(pid, 0)
        print("ended", flush=True)


if __name__ == "__main__":
    selectreactor.install()  # unlike epoll's, nothing of it is the kernel's, and shared by all who fork
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
