"""
A program with one idle SMC connection of txrdma, to be killed.

Run as C{python smcidler.py connect|listen ENDPOINT}; it prints the number of its listening port, and the mode
of the connection.
"""

from __future__ import annotations

import sys
from typing import Any

from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import clientFromString, serverFromString
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.task import react


class Idler(Protocol):
    """Prints the mode of its connection."""

    transport: Any

    def connectionMade(self) -> None:
        print("served by", self.transport.smc.mode, flush=True)


async def main(clock: Any, what: str, endpoint: str) -> None:
    """Connect or listen, and wait for the end."""
    factory = Factory.forProtocol(Idler)
    if what == "connect":
        await clientFromString(reactor, endpoint).connect(factory)
    else:
        port = await serverFromString(reactor, endpoint).listen(factory)
        print("port", port.getHost().port, flush=True)
    await Deferred()


if __name__ == "__main__":
    react(lambda clock, *words: Deferred.fromCoroutine(main(clock, *words)), sys.argv[1:])
