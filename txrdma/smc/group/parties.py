"""
The parties that a link has to do with: the link groups that it belongs to, and the connections on it.

Both know links; here is as much of them as links have to know.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from twisted.internet.interfaces import IAddress

from txrdma.iba.types import GID, MACAddress, MTU, RKey
from txrdma.interfaces import IVerbsDevice
from txrdma.smc.common.presence import Presence
from txrdma.smc.group._linkgroup import Timing


class Member(Protocol):
    """
    A connection, as its link and the groups see it.

    @ivar token: the alert token of our end (RFC 7609, A.4).
    @ivar peer: the address of the other end of the TCP connection.
    """

    token: int
    disconnected: bool

    @property
    def peer(self) -> IAddress: ...
    @property
    def connected(self) -> bool: ...
    @property
    def hasHeardEnd(self) -> bool: ...
    @property
    def hasArrived(self) -> bool: ...
    @property
    def written(self) -> int: ...

    def hasDelivered(self, total: int) -> bool:
        """Whether the peer has so many bytes, and the end of the connection where that is to be told."""

    def askForUpdate(self) -> None:
        """Send a message, even if there is nothing to tell."""

    def remoteBuffersGone(self, rkeys: Sequence[RKey]) -> None:
        """The peer takes no more writes to these buffers."""

    def linkLost(self, mayVanish: bool, arrived: int) -> None:
        """End the connection, because its link is gone."""

    def stopped(self) -> None:
        """The process ends: take leave of the peer."""

    def expired(self) -> None:
        """The peer has not done its part of the close in time."""


class Membership(Protocol):
    """The link groups of a device, as links see them: L{LinkGroups<txrdma.smc.group.groups.LinkGroups>}."""

    reactor: Any
    device: IVerbsDevice
    presence: Presence
    timing: Timing
    peerID: bytes
    gid: GID
    gidIndex: int
    mac: MACAddress
    mtu: MTU
    maxInline: int
    isStopping: bool

    @property
    def canRest(self) -> bool: ...

    def ringSize(self) -> int:
        """Bytes of the next connection's buffer."""

    def checkStopped(self) -> None:
        """Fewer peers may be without what was written for them."""

    def forgetting(self, link: Any) -> AbstractContextManager[None]:
        """Let no connection find a link any more, while it lets go of everything."""

    def orphaned(self, stream: Member) -> None:
        """A connection lives on without its link."""
