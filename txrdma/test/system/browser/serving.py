"""
A monitor on a simulated fabric, in a separate process: C{python -m txrdma.test.system.browser.serving}. Its
only user is an operator.

It prints the address of its pages, and executes the lines of its standard input: C{cut NODE PORT}, C{heal
NODE PORT}. It ends with its input.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from twisted.internet import reactor as theReactor
from twisted.internet.defer import Deferred
from twisted.internet.stdio import StandardIO
from twisted.internet.task import react
from twisted.protocols.basic import LineReceiver

from txrdma.commands.demo_fabric import makeService, netOf, urlOf
from txrdma.kit.passwords import PasswordHash
from txrdma.monitor.config import parseConfig
from txrdma.sim.fabric.fabric import SimulatedFabric
from txrdma.sim.faultgenerator import FaultGenerator

CONFIG = """
[web]
listen = 'tcp:0:interface=127.0.0.1'
users = '{history}.users'

[history]
file = '{history}'

[poll]
interval = 0.5
sweep = 60
settle = 0.2
states = 5

[findings]
clear = 1
"""
USER, PASSWORD = "alice", "right one"
HOSTILE = "<script>document.title='taken'</script>"
"""Name of one host."""


class Orders(LineReceiver):
    delimiter = b"\n"

    def __init__(self, fabric: SimulatedFabric) -> None:
        self.ended: Deferred[None] = Deferred()
        self._fabric = fabric

    def lineReceived(self, line: bytes) -> None:
        """Execute a command."""
        word, name, number = line.decode().split()
        {"cut": self._fabric.cut, "heal": self._fabric.heal}[word](name, int(number))

    def connectionLost(self, reason: Any = None) -> None:
        self.ended.callback(None)


async def main(reactor: Any, history: str) -> None:
    """Serve until the input ends."""
    with open(os.open(f"{history}.users", os.O_CREAT | os.O_WRONLY, 0o600), "w") as file:
        file.write(f"{USER}:{PasswordHash.of(PASSWORD.encode())}:operator\n")
    net = netOf(128)
    net.nodes["h00007"].description = HOSTILE
    fabric = SimulatedFabric(reactor, net, latencySeconds=0.0005)
    fabric.correct("leaf04")
    service = makeService(reactor, parseConfig(CONFIG.format(history=history)), fabric)
    faults = FaultGenerator(fabric)
    orders = Orders(fabric)
    StandardIO(orders)
    reactor.addSystemEventTrigger("before", "shutdown", service.stopService)  # also after a signal
    service.startService()
    faults.start(hasFaults=False)
    print(urlOf(await service.address()), flush=True)
    await orders.ended
    faults.stop()


if __name__ == "__main__":
    react(lambda reactor: Deferred.fromCoroutine(main(theReactor, sys.argv[1])))
