"""
Transfers between two hosts over networks with rates: C{python -m txrdma.test.support.btl.rates}.

It must run in a new network namespace, which becomes the receiver's. It prints the bytes per second of each
of L{SETUPS} as JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from contextlib import closing
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import react

from txrdma.btl.connections import connect, listen
from txrdma.messages.protocol import MessageProtocol
from txrdma.test.support.namespaces import TwoHosts
from txrdma.testing.protocols import Recorders

NETWORKS = ("10.79.0", "10.79.1", "10.79.2")
"""Two networks with rates, and one for the lifeline, without."""

SETUPS = ((2,), (2, 2), (1, 4))
"""The rates of the networks that a connection uses, in Mbit/s."""

TAG = 1
MESSAGE = 5_000
WARM_SECONDS, SECONDS = 0.8, 1.4


class Receiver(MessageProtocol):
    """
    Counts the bytes of one connection.

    @ivar bytes: number of bytes received so far.
    """

    bytes = 0

    def connectionMade(self) -> None:
        self.transport.setHandler(TAG, self.received)

    def received(self, data: memoryview) -> None:
        """Count a message."""
        self.bytes += len(data)


def devices(count: int, side: int) -> list[str]:
    """Return the devices of a host in the first networks."""
    return [f"soft:{network}.{side}" for network in NETWORKS[:count]]


async def send(reactor: Any, port: str, count: str) -> None:
    """Send messages until the process is killed."""
    client = MessageProtocol()
    used = devices(int(count), 2)
    await connect(reactor, f"{NETWORKS[-1]}.1", int(port), Recorders(lambda: client), used)
    while True:
        await client.transport.ready()
        client.transport.post(TAG, bytes(MESSAGE))


async def measure(reactor: Any, hosts: TwoHosts, count: int) -> float:
    """Return the bytes per second that arrive by the first networks."""
    server = Receiver()
    port: Any = await listen(reactor, 0, Recorders(lambda: server), f"{NETWORKS[-1]}.1", devices(count, 1))
    words = ["-m", __spec__.name, "send", str(port.getHost().port), str(count)]
    with subprocess.Popen([*hosts.second, sys.executable, *words]) as sending:
        try:
            while not server.bytes:
                await pause(reactor, 0.01)
            await pause(reactor, WARM_SECONDS)
            before, begun = server.bytes, time.monotonic()
            await pause(reactor, SECONDS)
            rate = (server.bytes - before) / (time.monotonic() - begun)
        finally:
            sending.kill()
    await port.stopListening()
    return rate


def pause(reactor: Any, seconds: float) -> Deferred[None]:
    """Let time pass."""
    done: Deferred[None] = Deferred()
    reactor.callLater(seconds, done.callback, None)
    return done


async def main(reactor: Any) -> None:
    """Measure all setups."""
    found = []
    with closing(TwoHosts(NETWORKS)) as hosts:
        for rates in SETUPS:
            for number, rate in enumerate(rates):
                shape = f"dev b{number} root tbf rate {rate}mbit burst 5kb limit 16kb".split()
                hosts.run(1, "tc", "qdisc", "replace", *shape)
            found.append(await measure(reactor, hosts, len(rates)))
    print(json.dumps(found))


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["send", port, count]:
            react(lambda reactor: Deferred.fromCoroutine(send(reactor, port, count)))
        case []:
            react(lambda reactor: Deferred.fromCoroutine(main(reactor)))
