"""
A monitor of a simulated fabric, for tests with several processes: C{python -m ... CONFIG HOST}.

SIGUSR1 disconnects a host. Each process has a separate, but equal, fabric.
"""

from __future__ import annotations

import signal
import sys
from typing import Any

CUT = "h00004"
"""Host that is disconnected."""


def main(config: str, host: str) -> None:
    """Monitor the fabric from a host until the process is killed."""
    from twisted.internet import reactor as theReactor

    from txrdma.monitor.config import readConfig
    from txrdma.sim.fabric import SimulatedFabric
    from txrdma.sim.nets.fattree import fatTree
    from txrdma.tap.monitor import MonitorService

    reactor: Any = theReactor
    fabric = SimulatedFabric(reactor, fatTree(8))
    service = MonitorService(reactor, readConfig(config), lambda: fabric.attach(host))

    def start() -> None:
        service.privilegedStartService()
        service.startService()
        signal.signal(signal.SIGUSR1, lambda *_: reactor.callFromThread(fabric.cut, CUT))

    reactor.callWhenRunning(start)
    reactor.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
