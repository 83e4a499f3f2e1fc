"""
Providers of streams: a pair of endpoint strings, and the transport that must be used between them.

A new provider of streams is compared with TCP by adding its strings here, or in its own suite.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final


@dataclass(frozen=True, slots=True)
class Provider:
    """
    A kind of stream between two processes.

    @ivar name: name in tables and on command lines.
    @ivar listen: the server's endpoint string, which listens on any free port. C{{address}} in it, and in
        C{connect}, is a loopback address that no other run uses.
    @ivar connect: the client's endpoint string, with C{{port}} for the server's port.
    @ivar served: result of L{txrdma.testing.streams.scriptedprotocol.servedBy} that both ends must have, so
        that no other transport is used silently.
    @ivar imports: modules that players import first, such as one that lengthens timeouts on a slow machine.
    @ivar patience: factor for time limits.
    @ivar cannot: names of conversations that do not run, with the reasons.
    """

    name: str
    listen: str
    connect: str
    served: str
    imports: tuple[str, ...] = ()
    patience: float = 1.0
    cannot: Mapping[str, str] = field(default_factory=dict, hash=False)


TCP: Final = Provider("tcp", "tcp:0:interface=127.0.0.1", "tcp:127.0.0.1:{port}", "TCP")
"""The reference for all other providers."""

SHARED_MEMORY: Final = Provider(
    "shared-memory", "smc:127.0.0.1:0", "smc:127.0.0.1:{port}", "SMC-R shared-memory"
)
"""C{smc:} between processes of one host, with the endpoint strings that users write."""

ROCEV2: Final = Provider(
    "rocev2",
    r"smc:127.0.0.1:0:device=soft\:route\=rocev2",
    r"smc:127.0.0.1:{port}:device=soft\:route\=rocev2",
    "SMC-R rocev2",
)
"""C{smc:} over software RoCE on UDP."""

_UNMADE: Final = "the client ends before the server knows that the connection is made, so it never is"

RSOCKET: Final = Provider(
    "rsocket",
    "rsocket:{address}:0:keepalive=1",
    "rsocket:{address}:{port}:keepalive=1",
    "RSocketTransport",
    patience=2.0,
    cannot={
        "no-listener": "without a software device on the server's host, no process rejects the request",
        "writes-and-in-this-turn-kill": _UNMADE,
        "writes-and-in-this-turn-exit": _UNMADE,
    },
)
"""C{rsocket:} between processes of one host, over shared memory."""

BTL: Final = Provider("btl", "btl:127.0.0.1:0", "btl:127.0.0.1:{port}", "BTLTransport", patience=2.0)
"""C{btl:} between processes of one host, over datagrams of software RoCE on UDP."""

PROVIDERS: Final = (SHARED_MEMORY, ROCEV2, RSOCKET, BTL)
"""The providers that are compared with TCP on every machine."""
