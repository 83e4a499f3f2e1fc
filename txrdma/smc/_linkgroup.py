"""
A link group: one link between two ends, the keys of each other's buffers, the connections on it.

Follows RFC 7609, 4.5 (LLC) and 3.2 (link groups). Nothing here reads a clock or a queue pair.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from txrdma.iba.types import GID, MACAddress, QPN, RKey
from txrdma.smc.clc import Diagnosis
from txrdma.smc.llc import DeleteReason


class Role(Enum):
    """Which end of the TCP connections we are: a group serves one role (RFC 7609, 3.2)."""

    SERVER = "server"
    CLIENT = "client"


class GroupKey(NamedTuple):
    """What connections have in common that may share a group; C{qpn} counts for clients only."""

    role: Role
    peerID: bytes
    gid: GID
    mac: MACAddress
    qpn: QPN | None = None


class LinkEnd(NamedTuple):
    """One end of a link, as CLC and CONFIRM LINK name it."""

    mac: MACAddress
    gid: GID
    qpn: QPN


@dataclass(frozen=True, slots=True)
class LinkConfirmed:
    """CONFIRM LINK is done: connections may use the link."""


@dataclass(frozen=True, slots=True)
class LinkRefused:
    """CONFIRM LINK failed: decline with this."""

    diagnosis: Diagnosis


@dataclass(frozen=True, slots=True)
class RKeyConfirmed:
    """The peer knows our buffer: it may be named in Accept or Confirm."""

    rkey: RKey


@dataclass(frozen=True, slots=True)
class RKeyRefused:
    """The peer did not take our buffer's key, or did not answer."""

    rkey: RKey


@dataclass(frozen=True, slots=True)
class RKeysDeleted:
    """The peer forgot these buffers of ours (or did not answer): they may be freed."""

    rkeys: tuple[RKey, ...]


@dataclass(frozen=True, slots=True)
class RemoteRKeysDeleted:
    """The peer took these buffers of its own back: nothing may be written there."""

    rkeys: tuple[RKey, ...]


@dataclass(frozen=True, slots=True)
class GroupEnded:
    """The group is over: every connection on it is lost, the queue pair can be closed."""

    reason: DeleteReason
    text: str


class LinkGroup:
    """
    The LLC flows of one link, and the tables of its group.

    Cores' five: C{received(message, now)}, C{expired(now)}, C{deadline()}, C{outgoing()} (a list of LLC messages to
    SEND), C{events()}.

    @ivar heard: when the link last brought something: its owner sets it, once per batch, for what it does not hand to
        C{received}.
    @ivar connections: by alert token.
    @ivar usable: whether a new connection may be put on it.
    """

    def confirm(self, now: float) -> None:
        """First contact. Server: send CONFIRM LINK (the queue pair is in RTS). Client: wait for it (RTR)."""

    def confirmRKey(self, rkey: RKey, address: int, now: float) -> None:
        """Tell the peer of a buffer of ours: L{RKeyConfirmed} or L{RKeyRefused} follows."""

    def deleteRKeys(self, rkeys: list[RKey], now: float) -> None:
        """We take buffers back: L{RKeysDeleted} follows."""

    def agreed(self, rkey: RKey) -> None:
        """A first contact's Accept or Confirm named this buffer of ours: no need to confirm it."""

    def learn(self, rkey: RKey, address: int) -> None:
        """The same for the peer's buffer."""

    def target(self, rkey: RKey, address: int, size: int, index: int) -> int:
        """
        Where the peer's element begins, in its address space.

        @raise Refused: the peer never told of that buffer; C{status} is L{Diagnosis.ERR_RTOK}.
        """
        raise NotImplementedError

    def add(self, connection: object, now: float) -> int:
        """Put a connection on the group: its alert token."""
        raise NotImplementedError

    def remove(self, token: int, now: float) -> None:
        """The connection is over. Twice is fine."""

    def shutdown(self, now: float, reason: DeleteReason) -> None:
        """End the group in order: DELETE LINK; L{GroupEnded} follows."""

    def linkDown(self, now: float, text: str) -> None:
        """The queue pair failed."""
