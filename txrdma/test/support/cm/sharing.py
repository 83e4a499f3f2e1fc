"""
One of several processes at an address.

C{python -m txrdma.test.support.cm.sharing ROLE DEVICE ADDRESS COUNT PORT...}: an C{idle} process opens queue
pair 1. A C{server} answers messages at its port. Both run until they are killed. A C{client} has a lasting
connection to each port, and makes COUNT further ones to each; it verifies each answer. COUNT may be followed
by a colon and the seconds between them.

C{python -m txrdma.test.support.cm.sharing fork} imports everything once, and forks a process for each line of
its standard input: the path of a file for the output, and the words above. The output begins with the process
ID, and ends with the exit status.
"""

from __future__ import annotations

import os
import signal
import sys
from functools import partial
from hashlib import sha256
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionDone
from twisted.internet.task import deferLater, react
from twisted.python.failure import Failure

from txrdma.cm.connections.adapter import adapterOf
from txrdma.cm.connections.endpoints import RDMAClientEndpoint, RDMAServerEndpoint
from txrdma.cm.connections.protocol import RDMAProtocol
from txrdma.messages.protocol import MessageFactory


class Server(RDMAProtocol):
    """Answers each message by its hash, with the service's port in front."""

    def __init__(self, port: int) -> None:
        self.port = port

    def messageReceived(self, data: bytes, immediate: int | None) -> None:
        self.transport.sendMessage(b"%d %s" % (self.port, sha256(data).digest()))


class Client(RDMAProtocol):
    """Sends one request at a time."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.ended: Deferred[None] = Deferred()
        self._waiting: Deferred[bytes] | None = None

    async def ask(self, data: bytes) -> None:
        """Send a request, and verify the answer."""
        self._waiting = Deferred()
        self.transport.sendMessage(data)
        answer = await self._waiting
        if answer != b"%d %s" % (self.port, sha256(data).digest()):
            raise AssertionError(f"wrong answer of port {self.port}")

    def messageReceived(self, data: bytes, immediate: int | None) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting.callback(data)

    def connectionLost(self, reason: Failure) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting.errback(reason)
        if reason.check(ConnectionDone):
            self.ended.callback(None)
        else:
            self.ended.errback(reason)


async def use(reactor: Any, device: str, address: str, count: int, seconds: float, ports: list[int]) -> None:
    """Use all services, C{count} times, with a pause of C{seconds} after each."""

    async def connect(port: int) -> Client:
        endpoint = RDMAClientEndpoint(reactor, address, port, device)
        made = await endpoint.connect(MessageFactory(lambda: Client(port)))
        assert isinstance(made, Client)
        return made

    async def close(client: Client) -> None:
        client.transport.loseConnection()
        await client.ended

    lasting = [await connect(port) for port in ports]
    for number in range(count):
        print(number, flush=True)
        for client in lasting:
            await client.ask(b"%d" % number)
            another = await connect(client.port)
            await another.ask(bytes(3000) + b"%d" % number)
            await close(another)
        await deferLater(reactor, seconds)
    for client in lasting:
        await close(client)
    print("done", flush=True)


async def main(reactor: Any, role: str, device: str, address: str, count: str, *ports: str) -> None:
    if role == "client":
        times, _, seconds = count.partition(":")
        await use(reactor, device, address, int(times), float(seconds or 0), [int(port) for port in ports])
        return
    adapter = adapterOf(reactor, device)
    adapter.hold()
    for port in map(int, ports):
        endpoint = RDMAServerEndpoint(reactor, port, device)
        await endpoint.listen(MessageFactory(partial(Server, port)))
    print("ready", adapter.device.name, flush=True)
    await Deferred()


def run(*words: str) -> None:
    """Run a role until its end, which raises SystemExit."""
    react(lambda reactor: Deferred.fromCoroutine(main(reactor, *words)))


def forkAll() -> None:
    """Fork a process for each line of the standard input."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps the processes
    for line in sys.stdin:
        path, *words = line.split()
        if os.fork():
            continue
        with open(path, "w") as output:
            for number in (1, 2):
                os.dup2(output.fileno(), number)
        print("pid", os.getpid(), flush=True)
        try:
            run(*words)
        except SystemExit as end:
            print("exited", end.code or 0, flush=True)
            raise


if __name__ == "__main__":
    if sys.argv[1] == "fork":
        forkAll()
    else:
        run(*sys.argv[1:])
