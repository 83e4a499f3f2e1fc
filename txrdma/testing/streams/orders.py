"""
Orders: what a process of a conversation is told to be, as a line of JSON.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

CLIENT, SERVER, PROXY = "client", "server", "proxy"


@dataclass(frozen=True, slots=True)
class Order:
    """
    An order to the nursery to fork a process, with all that the process is to do.

    @ivar who: L{CLIENT}, L{SERVER} or L{PROXY}.
    @ivar stage: path of the UNIX socket to which everything is reported.
    @ivar log: path of the file that gets standard output and error.
    @ivar reactor: a name of L{txrdma.testing.streams.player.REACTORS}.
    @ivar listen: endpoint string of a server, or of a proxy; empty for a client.
    @ivar connect: endpoint string of a client, or of a proxy; empty for a server.
    @ivar script: what the end does (L{txrdma.testing.streams.script}); empty for a proxy.
    @ivar tls: a folder with a key and a certificate in C{server.pem}, when the stream is to be wrapped in
        TLS.
    @ivar imports: modules to import before anything else, such as one that makes a slow machine's time-outs
        longer.
    @ivar settling: seconds after which all that is under way has arrived.
    """

    who: str
    stage: str
    log: str
    reactor: str
    listen: str = ""
    connect: str = ""
    script: str = ""
    tls: str = ""
    imports: tuple[str, ...] = ()
    settling: float = 0.3

    def encode(self) -> bytes:
        """The order as a line."""
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def decode(cls, line: bytes) -> Order:
        """The order that a line stands for."""
        told = json.loads(line)
        return cls(**{**told, "imports": tuple(told["imports"])})
