"""
The CLC handshake of both ends, on a TCP connection that will carry the application's data if it fails.

Follows RFC 7609, 3.5 and 4.2 to 4.4. Nothing here reads a clock or a socket.

Both cores have C{received(data, now)}, C{expired(now)}, C{deadline()}, C{outgoing()}, C{events()}, and C{done}: once
it is true, what TCP brings is none of their business. Server::

    bytes -> Proposed -> accept(message, now) -> Confirmed -> established()       SMC-R it is
                      -> decline(diagnosis, now) -> FellBack                      anywhere before established()

Client: proposal goes out at once -> Accepted -> confirm(message, now) -> established(). Either side gets FellBack when
the peer declines, and Failed when the connection is of no use.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Union

from txrdma.error import RDMAError
from txrdma.smc.clc import Accept, Confirm, Diagnosis, Proposal

CLC_TIMEOUT = 6.0
"""Seconds to wait for a CLC message (Linux)."""

LATE_DECLINE_TIMEOUT = 1.0
"""Seconds in which a crossing Decline may still come (Linux)."""


@dataclass(frozen=True, slots=True)
class Proposed:
    """The client proposes SMC-R, in a form that we can speak: answer by C{accept} or C{decline}."""

    proposal: Proposal


@dataclass(frozen=True, slots=True)
class Accepted:
    """The server accepts: answer by C{confirm} or C{decline}."""

    accept: Accept


@dataclass(frozen=True, slots=True)
class Confirmed:
    """The client confirms: bring up the link (first contact), then C{established} or C{decline}."""

    confirm: Confirm


@dataclass(frozen=True, slots=True)
class FellBack:
    """
    TCP it is.

    @ivar reason: ours; C{PEERDECL} when the peer declined.
    @ivar peerDiagnosis: the peer's, when it declined.
    @ivar data: the first bytes for the application.
    """

    reason: Diagnosis
    peerDiagnosis: Diagnosis | None
    data: bytes


@dataclass(frozen=True, slots=True)
class ApplicationData:
    """Bytes for the application that came after L{FellBack}, while the core is not yet C{done}."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Failed:
    """Neither SMC-R nor TCP can be had from this connection: reset it."""

    error: RDMAError


Event = Union[Proposed, Accepted, Confirmed, FellBack, ApplicationData, Failed]


@dataclass(frozen=True, slots=True)
class Subnets:
    """Where our end of the TCP connection lives: (network, prefix length) each, for the version 1 check."""

    ipv4: tuple[int, int] | None = None
    ipv6: tuple[tuple[bytes, int], ...] = ()

    def shares(self, proposal: Proposal) -> bool:
        """Whether the client is in a subnet of ours (RFC 7609, 4.3.1)."""
        raise NotImplementedError


class ServerHandshake:
    """
    The server's end.

    @param peerID: ours, for Decline.
    @param announced: a carrier said that the client speaks SMC: wait for its Proposal, C{CLC_TIMEOUT} long.
        Otherwise anything that is not a whole valid Proposal is the application's.
    @param subnets: check that the client is in one of them; None: don't.
    """

    done: bool

    def __init__(
        self, now: float, *, peerID: bytes, announced: bool, subnets: Subnets | None = None
    ) -> None: ...

    def accept(self, message: Accept, now: float) -> None:
        """Answer the Proposal."""

    def decline(self, diagnosis: Diagnosis, now: float, outOfSync: bool = False) -> None:
        """No: use TCP. Legal at any time before L{established}."""

    def established(self) -> None:
        """The link carries it now."""

    def received(self, data: bytes, now: float) -> None:
        """TCP brought this."""

    def expired(self, now: float) -> None:
        """The time is past C{deadline()}."""

    def deadline(self) -> float | None:
        """When to call C{expired}, if nothing happens before."""
        raise NotImplementedError

    def outgoing(self) -> bytes:
        """What to send by TCP."""
        raise NotImplementedError

    def events(self) -> list[Event]:
        """What happened, once."""
        raise NotImplementedError


class ClientHandshake:
    """
    The client's end: its Proposal is in C{outgoing} at once.

    Methods as L{ServerHandshake}'s, with C{confirm} in place of C{accept}.
    """

    done: bool

    def __init__(self, now: float, proposal: Proposal) -> None: ...

    def confirm(self, message: Confirm, now: float) -> None:
        """Answer the Accept."""
