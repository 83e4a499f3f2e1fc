"""
Streams between two hosts by link-local addresses: C{python -m txrdma.test.support.streams.linklocal}.

It must run in a new network namespace. It prints a line for each endpoint string of clients: the prefix, and
what was received or the exception. Servers answer with the addresses of both ends; clients print those too,
and the reason why C{smc:} uses TCP. C{server} and C{client} are the processes on each host.
"""

from __future__ import annotations

import socket
import subprocess
import sys
from contextlib import closing
from typing import Any, Final

from twisted.internet.defer import Deferred
from twisted.internet.endpoints import clientFromString, connectProtocol, serverFromString
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.task import react

from txrdma.test.support.namespaces import TwoHosts

_SOFT: Final = r"smc:{}:7005:device=soft\:fe80\\\:\\\:{}%{}:peer=smc"

SERVERS: Final = {
    r"tcp6:7001:interface=fe80\:\:1%a0": "tcp:{host}:7001",
    r"rsocket:fe80\:\:1%a0:7002": "rsocket:{host}:7002",
    r"btl:fe80\:\:1%a0:7003": "btl:{host}:7003",
    r"smc:fe80\:\:1%a0:7004:peer=smc": "smc:{host}:7004:peer=smc",
    _SOFT.format(r"fe80\:\:1%a0", 1, "a0"): _SOFT.format("{host}", 2, "b0"),
}
"""The endpoint strings of servers, each with that of its clients."""

HOSTS: Final = (r"fe80\:\:1%b0", r"fe80\:\:1")
"""The host to which clients connect, with and without a zone."""


def addresses(transport: Any) -> str:
    """Return the addresses of both ends, each with the interface of its scope ID."""
    ends = transport.getHost(), transport.getPeer()
    return " ".join(f"{end.host} {end.scopeID and socket.if_indextoname(end.scopeID)}" for end in ends)


class Answering(Protocol):
    """Answers with the addresses of both ends."""

    def dataReceived(self, data: bytes) -> None:
        assert self.transport is not None
        self.transport.write(addresses(self.transport).encode())


class Asking(Protocol):
    """Sends bytes, and closes when the answer has come."""

    def __init__(self) -> None:
        self.answer: Deferred[str] = Deferred()

    def connectionMade(self) -> None:
        assert self.transport is not None
        self.transport.write(b"hello")

    def dataReceived(self, data: bytes) -> None:
        assert self.transport is not None
        answer = f"{addresses(self.transport)}, {data.decode()}"
        smc: Any = getattr(self.transport, "smc", None)
        if smc is not None and smc.fallbackReason is not None:
            answer += f", {smc.fallbackReason.name}"
        self.transport.loseConnection()
        self.answer.callback(answer)


async def serve(reactor: Any) -> None:
    """Answer clients until the process is killed."""
    for text in SERVERS:
        await serverFromString(reactor, text).listen(Factory.forProtocol(Answering))
    print("listening", flush=True)
    await Deferred()


async def ask(reactor: Any) -> None:
    """Print what each server answers, or the exception."""
    for client in SERVERS.values():
        prefix = client.partition(":")[0]
        for host in HOSTS:
            try:
                endpoint = clientFromString(reactor, client.format(host=host))
                asking = await connectProtocol(endpoint, Asking())
            except Exception as error:
                print(prefix, type(error).__name__)
            else:
                print(prefix, await asking.answer)


def main() -> None:
    """Run the server and the client."""
    command = [sys.executable, "-m", "txrdma.test.support.streams.linklocal"]
    with closing(TwoHosts(("10.79.0",))) as hosts:
        for side, name in enumerate(("a0", "b0")):
            hosts.run(side, "ip", *f"address add fe80::{side + 1}/64 dev {name} nodad".split())
        with subprocess.Popen([*command, "server"], stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            server.stdout.readline()
            try:
                subprocess.run([*hosts.second, *command, "client"], timeout=60)
            finally:
                server.kill()


if __name__ == "__main__":
    if sys.argv[1:]:
        run = serve if sys.argv[1] == "server" else ask
        react(lambda reactor: Deferred.fromCoroutine(run(reactor)))
    main()
