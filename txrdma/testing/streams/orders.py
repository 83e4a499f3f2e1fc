"""Orders to the processes of a conversation, each a line of JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

CLIENT, SERVER, PROXY = "client", "server", "proxy"


@dataclass(frozen=True, slots=True)
class Order:
    """
    An order to the forkserver to fork a process, with everything that the process needs.

    @ivar who: L{CLIENT}, L{SERVER} or L{PROXY}.
    @ivar runner: path of the UNIX socket for reports.
    @ivar log: path of the file for standard output and error.
    @ivar reactor: a name of L{txrdma.testing.streams.player.REACTORS}.
    @ivar listen: endpoint string of a server, or of a proxy; empty for a client.
    @ivar connect: endpoint string of a client, or of a proxy; empty for a server.
    @ivar script: script of the end (L{txrdma.testing.streams.script}); empty for a proxy.
    @ivar tls: folder with a key and a certificate in C{server.pem} if the stream is wrapped in TLS, else
        empty.
    @ivar imports: modules to import first, such as one that lengthens timeouts on a slow machine.
    @ivar settling: seconds after which everything in flight has arrived.
    """

    who: str
    runner: str
    log: str
    reactor: str
    listen: str = ""
    connect: str = ""
    script: str = ""
    tls: str = ""
    imports: tuple[str, ...] = ()
    settling: float = 0.3

    def encode(self) -> bytes:
        """Return the order as a line."""
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def decode(cls, line: bytes) -> Order:
        """Return the order that a line encodes."""
        reported = json.loads(line)
        return cls(**{**reported, "imports": tuple(reported["imports"])})
