"""
Monitors for tests that kill them: C{python -m txrdma.test.support.monitor.killing HISTORY LOG KILLS}.

Each line of standard input has a number and the lifetime of a process in seconds. The program forks a process
that monitors a simulated fabric, prints its process ID, and prints C{ended} when it has ended. The number
selects the hosts that are disconnected and return while the process runs. All processes together must
announce each finding about a host once. Forking saves the time of imports.
"""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import replace
from random import Random
from typing import Any

from twisted.internet import selectreactor

HOSTS = 14
"""Hosts that are disconnected: all except those of the monitor and of the subnet manager."""

_LONGEST_LIFE = 120
"""Seconds after which a process ends if nobody kills it."""

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
    """Return whether a host is disconnected before the process with this number: for half of the numbers."""
    first = (host - 1) * kills // (2 * HOSTS)
    return first < number <= first + kills // 2


def watch(history: str, log: str, kills: int, number: int, longest: float) -> None:
    """Monitor the fabric until the process is killed, at most C{longest} seconds from now."""
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
        """Change the fabric after the first sweep: unknown hosts are not reported as missing."""
        if service.poller.fabric is None:
            reactor.callLater(0.02, changeSeen, at)
        else:
            change(at)

    change(number)
    config = parseConfig(CONFIG.format(history=history, log=log))
    rules = FindingRules({}, clearSeconds=config.rules.clearSeconds)  # raise without delay
    service = MonitorService(reactor, replace(config, rules=rules), fabric.attach)
    reactor.callWhenRunning(service.startService)
    reactor.callLater(Random(number).uniform(0.1, longest / 2), changeSeen, number + 1)
    reactor.run()


def main(history: str, log: str, kills: int) -> None:
    """Fork a process for each line, and wait for it."""
    import txrdma.commands.demo_fabric  # noqa: F401  # with all that a monitor imports

    for line in sys.stdin:
        pid = os.fork()
        if not pid:
            signal.alarm(_LONGEST_LIFE)  # if the test is killed
            number, longest = line.split()
            watch(history, log, kills, int(number), float(longest))
        print(pid, flush=True)
        os.waitpid(pid, 0)
        print("ended", flush=True)


if __name__ == "__main__":
    selectreactor.install()  # epoll's descriptor would be shared by all forked processes
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
