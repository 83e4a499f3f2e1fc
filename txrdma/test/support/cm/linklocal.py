"""
Clients and servers on two hosts by IPv6: C{python -m txrdma.test.support.cm.linklocal}.

It must run in a new network namespace. It prints the output of C{txrdma rping}'s client for each address of
the server. Then it prints a line for each endpoint string of clients: the prefix, and what the server has
answered, or the exception. Servers of messages answer with the host of the client; their clients print that
of the server, too. Both ends of streams report the addresses of both ends, and clients the reason why C{smc:}
uses TCP. C{server} and C{client} are the processes on each host.
"""

from __future__ import annotations

import socket
import subprocess
import sys
from contextlib import closing, ExitStack
from typing import Any, Final, IO

from twisted.internet.defer import Deferred
from twisted.internet.endpoints import clientFromString, connectProtocol, serverFromString
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.task import react

from txrdma.cm import DatagramProtocol, RDMAProtocol
from txrdma.cm.connections.datagrams import DatagramPeer
from txrdma.test.support.namespaces import TwoHosts

ADDRESSES: Final = (("2001:db8::1", "2001:db8::1"), ("fe80::1%a0", "fe80::1%b0"))
"""The address of the server, with the zone of each host."""

_SMC: Final = r"smc:{}:7005:device=soft\:fe80\\\:\\\:{}%{}:peer=smc"

HOSTS: Final = (r"fe80\:\:1%b0", r"fe80\:\:1")
"""The host to which clients connect, with and without a zone."""

_SOURCES: Final = ((HOSTS[0], ""), *((each, r":bindAddress=fe80\:\:2%b0") for each in HOSTS), (HOSTS[1], ""))

SERVERS: Final = {
    r"rdma:fe80\:\:1%a0:7471": [f"rdma:{host}:7471{more}" for host, more in _SOURCES],
    r"sidr:7472:interface=fe80\:\:1%a0": [f"sidr:{host}:7472{more}" for host, more in _SOURCES],
    r"tcp6:7001:interface=fe80\:\:1%a0": [f"tcp:{host}:7001" for host in HOSTS],
    r"rsocket:fe80\:\:1%a0:7002": [f"rsocket:{host}:7002" for host in HOSTS],
    r"btl:fe80\:\:1%a0:7003": [f"btl:{host}:7003" for host in HOSTS],
    r"smc:fe80\:\:1%a0:7004:peer=smc": [f"smc:{host}:7004:peer=smc" for host in HOSTS],
    _SMC.format(HOSTS[0].replace("b", "a"), 1, "a0"): [_SMC.format(host, 2, "b0") for host in HOSTS],
}
"""The endpoint strings of servers, each with those of its clients."""


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


def addresses(transport: Any) -> str:
    """Return the addresses of both ends of a stream, each with the interface of its scope ID."""
    ends = transport.getHost(), transport.getPeer()
    return " ".join(f"{end.host} {end.scopeID and socket.if_indextoname(end.scopeID)}" for end in ends)


class AnsweringStreams(Protocol):
    """Answers with the addresses of both ends."""

    transport: Any

    def dataReceived(self, data: bytes) -> None:
        self.transport.write(addresses(self.transport).encode())


class AskingByStream(Protocol):
    """Sends bytes, and closes when the answer has come."""

    transport: Any

    def __init__(self) -> None:
        self.replied: Deferred[str] = Deferred()

    def connectionMade(self) -> None:
        self.transport.write(b"hello")

    def dataReceived(self, data: bytes) -> None:
        answer = f"{addresses(self.transport)}, {data.decode()}"
        smc: Any = getattr(self.transport, "smc", None)
        if smc is not None and smc.fallbackReason is not None:
            answer += f", {smc.fallbackReason.name}"
        self.transport.loseConnection()
        self.replied.callback(answer)


PROTOCOLS: Final[dict[str, tuple[Any, Any]]] = {
    "rdma": (Answering, Asking),
    "sidr": (AnsweringDatagrams, AskingByDatagram),
}
"""Protocols of a server and its client, by prefix; others are streams."""


def protocolsOf(text: str) -> tuple[Any, Any]:
    return PROTOCOLS.get(text.partition(":")[0], (AnsweringStreams, AskingByStream))


async def serve(reactor: Any) -> None:
    """Answer clients until the process is killed."""
    for text in SERVERS:
        answering, _ = protocolsOf(text)
        port = await serverFromString(reactor, text).listen(Factory.forProtocol(answering))
        print("listening", port.getHost().host, flush=True)
    await Deferred()


async def ask(reactor: Any) -> None:
    """Print what each server answers, or the exception."""
    for text in [text for texts in SERVERS.values() for text in texts]:
        prefix = text.partition(":")[0]
        _, kind = protocolsOf(text)
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
        for text in SERVERS:
            listened = answering.readline()
            if text.partition(":")[0] in PROTOCOLS:
                print(listened, end="", flush=True)
        subprocess.run([*hosts.second, *command, "client"], timeout=120)


if __name__ == "__main__":
    if sys.argv[1:]:
        run = serve if sys.argv[1] == "server" else ask
        react(lambda reactor: Deferred.fromCoroutine(run(reactor)))
    main()
