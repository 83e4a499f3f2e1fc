"""C{txrdma btl-ping}: measures round trips over the byte transfer layer, between two hosts or processes."""

from __future__ import annotations

from statistics import median
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater
from twisted.python import usage
from twisted.python.failure import Failure

from txrdma.btl.connections import connect, listen
from txrdma.commands.common.options import CommandOptions as BaseOptions
from txrdma.commands.common.options import IReactor
from txrdma.commands.common.rows import printJSON
from txrdma.messages.protocol import MessageFactory, MessageProtocol

PORT = 18517
"""The server's default TCP port."""

_PING, _PONG = 1, 2


class CommandOptions(BaseOptions):
    """Options of C{txrdma btl-ping}: the server, and the number and size of pings."""

    synopsis = "[options] HOST | --server [options]"
    longdesc = (
        "Send messages to a host where txrdma btl-ping --server runs, and measure their round-trip "
        "times. Before the first one, a small packet and one of the full MTU are tried in both "
        "directions; if one of them is lost, the command reports which one, and the interface."
    )
    optFlags = [
        ["server", "S", "Run as the server, until Ctrl-C."],
        ["json", "j", "Print the result as JSON."],
    ]
    optParameters = [
        ["port", "p", PORT, "The server's port.", int],
        ["count", "c", 10, "Number of pings.", int],
        ["size", "s", 64, "Length of a ping in bytes.", int],
        ["interval", "i", 0.1, "Seconds between two pings.", float],
        ["bind", "I", "", "Server: the IP address to listen at."],
        ["device", None, None, "RDMA device. [default: soft: at the address]"],
    ]

    def parseArgs(self, host: str = "") -> None:
        self["host"] = host

    def postOptions(self) -> None:
        if bool(self["host"]) == bool(self["server"]):
            raise usage.UsageError("expected HOST, or --server")
        self.checkRanges(
            ("port", 0, 65535), ("count", 1, 1 << 40), ("size", 0, 1 << 26), ("interval", 0, 3600)
        )


class PingAnswering(MessageProtocol):
    """The protocol of a server, which echoes the data of each ping."""

    def connectionMade(self) -> None:
        self.transport.setHandler(_PING, lambda data: self.transport.post(_PONG, bytes(data)))


class Pinging(MessageProtocol):
    """
    The protocol of a client.

    @ivar ended: fires when the connection has ended.
    """

    def __init__(self) -> None:
        self.ended: Deferred[None] = Deferred()

    async def ping(self, data: bytes) -> None:
        """Send data, and wait until the server has echoed it."""
        self.transport.post(_PING, data)
        await self.transport.receive(_PONG)

    def connectionLost(self, reason: Failure) -> None:
        self.ended.callback(None)


def result(host: str, size: int, times: list[float]) -> dict[str, Any]:
    """Return the result of pings for JSON."""
    return {
        "host": host,
        "size": size,
        "pings": len(times),
        "minimumSeconds": min(times),
        "medianSeconds": median(times),
        "maximumSeconds": max(times),
    }


async def run(reactor: IReactor, options: CommandOptions) -> None:
    """Run C{txrdma btl-ping} as the server or the client."""
    await (_serve if options["server"] else _ping)(reactor, options)


async def _serve(reactor: IReactor, options: CommandOptions) -> None:
    factory = MessageFactory(PingAnswering)
    port: Any = await listen(reactor, options["port"], factory, options["bind"], options["device"])
    host = port.getHost()
    print(f"listening at {host.host} port {host.port}", flush=True)
    try:
        await Deferred()
    finally:
        port.stopListening()


async def _ping(reactor: IReactor, options: CommandOptions) -> None:
    pinging = Pinging()
    data, times = bytes(options["size"]), []
    factory = MessageFactory(lambda: pinging)
    await connect(reactor, options["host"], options["port"], factory, options["device"])
    try:
        for number in range(options["count"]):
            if number:
                await deferLater(reactor, options["interval"])
            began = reactor.seconds()
            await pinging.ping(data)
            times.append(reactor.seconds() - began)
            if not options["json"]:
                print(f"{len(data)} bytes from {options['host']}: {1e6 * times[-1]:.0f} us", flush=True)
    finally:
        pinging.transport.loseConnection()
        await pinging.ended
    found = result(options["host"], len(data), times)
    if options["json"]:
        printJSON(found)
    else:
        least, middle, most = (1e6 * found[f"{name}Seconds"] for name in ("minimum", "median", "maximum"))
        print(f"{len(times)} round trips: {least:.0f} us, {middle:.0f} us the median, {most:.0f} us at most")
