"""
Providers of streams: a pair of endpoint strings, and the transport that has to serve between them.

A new provider of streams is held to TCP by naming its strings here, or in its own suite.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final


@dataclass(frozen=True, slots=True)
class Provider:
    """
    A way to have a stream between two processes.

    @ivar name: for tables and command lines.
    @ivar listen: the server's endpoint string; it listens on any free port. C{{address}} in it, and in
        C{connect}, is a loopback address that no other play has.
    @ivar connect: the client's, with C{{port}} for the port that the server got.
    @ivar served: what L{txrdma.testing.streams.performing.servedBy} says of the transports, at both ends:
        nothing may silently run on another.
    @ivar imports: modules that players import first, such as one that makes a slow machine's time-outs
        longer.
    @ivar patience: how much longer than usual things take.
    @ivar cannot: names of conversations that are not played, and why not.
    """

    name: str
    listen: str
    connect: str
    served: str
    imports: tuple[str, ...] = ()
    patience: float = 1.0
    cannot: Mapping[str, str] = field(default_factory=dict, hash=False)


TCP: Final = Provider("tcp", "tcp:0:interface=127.0.0.1", "tcp:127.0.0.1:{port}", "TCP")
"""The judge of all others."""

SHARED_MEMORY: Final = Provider(
    "shared-memory", "smc:127.0.0.1:0", "smc:127.0.0.1:{port}", "SMC-R shared-memory"
)
"""C{smc:} between processes of one host, by the strings that users write."""

ROCEV2: Final = Provider(
    "rocev2",
    r"smc:127.0.0.1:0:device=soft\:route\=rocev2",
    r"smc:127.0.0.1:{port}:device=soft\:route\=rocev2",
    "SMC-R rocev2",
)
"""C{smc:} by software RoCE over UDP."""

_UNMADE: Final = "the client ends before the server knows that the connection is made, so it never is"

RSOCKET: Final = Provider(
    "rsocket",
    "rsocket:{address}:0:keepalive=1",
    "rsocket:{address}:{port}:keepalive=1",
    "RSocketTransport",
    patience=2.0,
    cannot={
        "nobody-listens": "a host where no process has a software device does not reject what it is asked",
        "writes-and-in-this-turn-kill": _UNMADE,
        "writes-and-in-this-turn-exit": _UNMADE,
    },
)
"""C{rsocket:} between processes of one host, by shared memory."""

BTL: Final = Provider("btl", "btl:127.0.0.1:0", "btl:127.0.0.1:{port}", "BTLTransport", patience=2.0)
"""C{btl:} between processes of one host, by datagrams of software RoCE over UDP."""

PROVIDERS: Final = (SHARED_MEMORY, ROCEV2, RSOCKET, BTL)
"""The streams that are held to TCP on every machine."""
