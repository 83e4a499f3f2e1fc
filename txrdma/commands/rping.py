"""C{txrdma rping}: pings by RDMA reads and writes; interoperates with librdmacm's C{rping}."""

from __future__ import annotations

import sys

from zope.interface import implementer

from twisted.internet.defer import Deferred, maybeDeferred
from twisted.python import usage
from twisted.python.failure import Failure

from txrdma.cm.connections.endpoints import RDMAClientEndpoint, RDMAServerEndpoint
from txrdma.cm.interfaces import IRDMAProtocol
from txrdma.cm.rping import LARGEST, PingClient, PingServer, PORT, TERMS
from txrdma.commands.common.options import CommandOptions as BaseOptions
from txrdma.commands.common.options import IReactor
from txrdma.messages.address import MessageAddress
from txrdma.messages.interfaces import IMessageProtocolFactory
from txrdma.messages.protocol import MessageFactory
from txrdma.ports.softdevices import softDeviceAt


class CommandOptions(BaseOptions):
    """Options of C{txrdma rping}: server or client, address, and number of pings, as in C{rping}."""

    synopsis = "-s [options] | -c -a ADDRESS [options]"
    longdesc = (
        "Connect by the RDMA connection manager, and exchange pings by RDMA reads and writes. Client and "
        "server each interoperate with librdmacm's rping, and have its options."
    )
    optFlags = [
        ["server", "s", "Run as the server."],
        ["client", "c", "Run as the client."],
        ["verbose", "v", "Show each ping."],
        ["validate", "V", "Client: verify the returned data, and stop at the first difference."],
        ["debug", "d", "Print connection events."],
        ["persistent", "P", "Server: serve concurrent clients until Ctrl-C."],
    ]
    optParameters = [
        ["address", "a", None, "Address of the server, for its client also a name. [default: 127.0.0.1]"],
        ["bind", "I", None, "Client: the IP address to connect from."],
        ["port", "p", PORT, "The server's port.", int],
        ["count", "C", 0, "Client: number of pings; 0 for no limit.", int],
        ["size", "S", 64, "Client: length of a ping in bytes.", int],
        ["device", None, None, "RDMA device. [default: soft: at the address]"],
    ]

    def postOptions(self) -> None:
        if bool(self["server"]) == bool(self["client"]):
            raise usage.UsageError("expected -s for the server, or -c for a client")
        if self["client"] and not self["address"]:
            raise usage.UsageError("-c needs -a, the server's address")
        self.checkRanges(("port", 1, 65535), ("count", 0, 1 << 40), ("size", 1, LARGEST))

    def show(self, ping: str) -> None:
        """Print a ping if C{--verbose} is given."""
        if self["verbose"]:
            print(f"{'server ' if self['server'] else ''}ping data: {ping}", flush=True)

    def debug(self, line: str) -> None:
        """Print a connection event if C{--debug} is given."""
        if self["debug"]:
            print(line, file=sys.stderr, flush=True)


async def run(reactor: IReactor, options: CommandOptions) -> None:
    """Run C{txrdma rping} as the server or the client."""
    await (serve if options["server"] else ping)(reactor, options)


async def ping(reactor: IReactor, options: CommandOptions) -> None:
    """Connect as the client, and send the requested number of pings."""
    source = options["bind"]
    device = options["device"] or (softDeviceAt(source) if source else None)
    endpoint = RDMAClientEndpoint(reactor, options["address"], options["port"], device, TERMS)
    client = PingClient(options["count"], options["size"], bool(options["validate"]), options.show)
    await endpoint.connect(MessageFactory(lambda: client))
    options.debug(f"connected: {client.transport!r}")
    pings = await client.ended
    options.debug(f"disconnected after {pings} pings")


@implementer(IMessageProtocolFactory)
class PingFactory:
    """
    The factory of a server, for one client, or with C{--persistent} for all.

    @ivar over: fires when the only client has disconnected, or fails with its error.
    """

    def __init__(self, options: CommandOptions) -> None:
        self._options = options
        self._living: dict[PingServer, None] = {}
        self.over: Deferred[None] = Deferred()

    def buildProtocol(self, peer: MessageAddress) -> IRDMAProtocol | None:
        """Return a new protocol; a server for one client rejects others while it is connected."""
        who = f"{peer.host} port {peer.port}"
        if self._living and not self._options["persistent"]:
            self._options.debug(f"rejected: {who}")
            return None
        self._options.debug(f"asked by {who}")
        return PingServer(self._options.show, self._began)

    def abort(self) -> None:
        """Abort the connections of all clients."""
        for server in tuple(self._living):
            server.transport.abortConnection()

    def _began(self, server: PingServer) -> None:
        self._living[server] = None
        self._options.debug(f"connected: {server.transport!r}")
        server.ended.addCallback(self._finished).addBoth(self._left, server)

    def _finished(self, pings: int) -> None:
        self._options.debug(f"disconnected after {pings} pings")

    def _left(self, result: Failure | None, server: PingServer) -> None:
        del self._living[server]
        if not self._options["persistent"]:
            if not self.over.called:
                self.over.callback(result)
        elif result is not None:
            self._options.debug(f"failed: {result.getErrorMessage()}")


async def serve(reactor: IReactor, options: CommandOptions) -> None:
    """Listen, and serve one client, or with C{--persistent} all clients until Ctrl-C."""
    host = options["address"] or "127.0.0.1"
    device = options["device"] or softDeviceAt(host)
    factory = PingFactory(options)
    endpoint = RDMAServerEndpoint(reactor, options["port"], device, TERMS)
    port = await endpoint.listen(factory)
    options.debug(f"listening at {host} port {options['port']}")
    try:
        await factory.over
    finally:
        factory.abort()
        await maybeDeferred(port.stopListening)
