"""
Clients and servers on two hosts by IPv6: C{python -m txrdma.test.support.cm.linklocal}.

It must run in a new network namespace. It prints the output of C{txrdma rping}'s client for each address of
the server. Then it prints a line for each endpoint string of clients: the prefix, and what the server has
answered, or the exception. Servers answer with the host of the client; clients print that of the server, too.
C{server} and C{client} are the processes on each host.
"""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing, ExitStack
from typing import Any, Final, IO

from twisted.internet.defer import Deferred
from twisted.internet.endpoints import clientFromString, connectProtocol, serverFromString
from twisted.internet.protocol import Factory
from twisted.internet.task import react

from txrdma.cm import DatagramProtocol, RDMAProtocol
from txrdma.cm.connections.datagrams import DatagramPeer
from txrdma.test.support.namespaces import TwoHosts

ADDRESSES: Final = (("2001:db8::1", "2001:db8::1"), ("fe80::1%a0", "fe80::1%b0"))
"""The address of the server, with the zone of each host."""

SERVERS: Final = (r"rdma:fe80\:\:1%a0:7471", r"sidr:7472:interface=fe80\:\:1%a0")

CLIENTS: Final = tuple(
    f"{prefix}:{host}:{port}{more}"
    for prefix, port in (("rdma", 7471), ("sidr", 7472))
    for host, more in (
        (r"fe80\:\:1%b0", ""),
        (r"fe80\:\:1%b0", r":bindAddress=fe80\:\:2%b0"),
        (r"fe80\:\:1", r":bindAddress=fe80\:\:2%b0"),
        (r"fe80\:\:1", ""),
    )
)


class Answering(RDMAProtocol):
    """Answers a message with the host of the client."""

    def messageReceived(self, data: bytes, immediate: int | None) -> None:
        self.transport.sendMessage(self.transport.getPeer().host.encode())


class Asking(RDMAProtocol):
    """Sends a message, and closes when the answer has come."""

    def __init__(self) -> None:
        self.replied: Deferred[str] = Deferred()

    def connectionMade(self) -> None:
        self.transport.sendMessage(b"hello")

    def messageReceived(self, data: bytes, immediate: int | None) -> None:
        host = self.transport.getPeer().host
        self.transport.loseConnection()
        self.replied.callback(f"{host} {data.decode()}")


class AnsweringDatagrams(DatagramProtocol):
    """Answers a datagram with the host of the client."""

    def datagramReceived(self, data: bytes, peer: DatagramPeer) -> None:
        self.transport.write((peer.gid.ip or "").encode(), peer)


class AskingByDatagram(DatagramProtocol):
    """Sends a datagram, and closes when the answer has come."""

    def __init__(self) -> None:
        self.replied: Deferred[str] = Deferred()

    def startProtocol(self) -> None:
        self.transport.write(b"hello")

    def datagramReceived(self, data: bytes, peer: DatagramPeer) -> None:
        self.transport.loseConnection()
        self.replied.callback(f"{peer.gid.ip} {data.decode()}")


async def serve(reactor: Any) -> None:
    """Answer clients until the process is killed."""
    protocol: Any
    for text, protocol in zip(SERVERS, (Answering, AnsweringDatagrams), strict=True):
        port = await serverFromString(reactor, text).listen(Factory.forProtocol(protocol))
        print("listening", port.getHost().host, flush=True)
    await Deferred()


async def ask(reactor: Any) -> None:
    """Print what each server answers, or the exception."""
    for text in CLIENTS:
        prefix = text.partition(":")[0]
        kind: Any = Asking if prefix == "rdma" else AskingByDatagram
        try:
            asking = await connectProtocol(clientFromString(reactor, text), kind())
        except Exception as error:
            print(prefix, type(error).__name__, flush=True)
        else:
            print(prefix, await asking.replied, flush=True)


def main() -> None:
    """Start the servers, and run the clients."""
    command = [sys.executable, "-m", "txrdma.test.support.cm.linklocal"]
    rping = [sys.executable, "-m", "txrdma", "rping"]
    with closing(TwoHosts(("10.79.0",))) as hosts, ExitStack() as servers:
        for side, name in enumerate(("a0", "b0")):
            for network in ("2001:db8::", "fe80::"):
                words = f"address add {network}{side + 1}/64 dev {name} nodad"
                hosts.run(side, "ip", *words.split())

        def started(*words: str) -> IO[str]:
            """Start a server, which is killed at the end, and return its output."""
            server = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            servers.enter_context(server)
            servers.callback(server.kill)
            assert server.stdout is not None
            return server.stdout

        listening = [started(*rping, "-s", "-d", "-a", here) for here, _ in ADDRESSES]
        answering = started(*command, "server")
        for (_, there), output in zip(ADDRESSES, listening, strict=True):
            output.readline()
            subprocess.run([*hosts.second, *rping, "-c", "-a", there, "-C", "1", "-v"], timeout=60)
        for _ in SERVERS:
            print(answering.readline(), end="", flush=True)
        subprocess.run([*hosts.second, *command, "client"], timeout=60)


if __name__ == "__main__":
    if sys.argv[1:]:
        run = serve if sys.argv[1] == "server" else ask
        react(lambda reactor: Deferred.fromCoroutine(run(reactor)))
    main()
