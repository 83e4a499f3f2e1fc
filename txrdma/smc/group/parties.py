"""
Interfaces of the objects above a link: its connections, its group, and all groups of the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from twisted.internet.interfaces import IAddress

from txrdma.iba.types import RKey
from txrdma.smc.common.reactoruse import ReactorUse
from txrdma.smc.flow.flow import Flow
from txrdma.smc.flow.sendqueue import RemoteBuffer, Unacknowledged
from txrdma.smc.group._linkgroup import Timing
from txrdma.smc.group.attachment import Port
from txrdma.smc.group.buffers import Element
from txrdma.smc.group.closenotifier import CloseNotifier
from txrdma.smc.terms.offer import Agreement
from txrdma.smc.wire.clc import Accept, Confirm


class Member(Protocol):
    """
    A connection of a link: L{Stream<txrdma.smc.stream.stream.Stream>}.

    @ivar token: local alert token (RFC 7609, A.4).
    @ivar peer: address of the peer's end of the TCP connection.
    """

    token: int
    disconnected: bool

    @property
    def peer(self) -> IAddress: ...
    @property
    def connected(self) -> bool: ...
    @property
    def hasReceivedEnd(self) -> bool: ...
    @property
    def hasArrived(self) -> bool: ...
    @property
    def written(self) -> int: ...

    def hasDelivered(self, total: int) -> bool:
        """Whether the peer has received so many bytes, and the local close."""

    def askForUpdate(self) -> None:
        """Send a message even without news."""

    def remoteBuffersGone(self, rkeys: Sequence[RKey]) -> None:
        """Handle DELETE RKEY of the peer's buffers."""

    def rebind(self, link: Any) -> None:
        """Use another link, because the named one failed during the handshake."""

    def move(self, link: Any, bearing: RemoteBuffer, kept: Sequence[Unacknowledged]) -> None:
        """Continue on another link, because this one has failed."""

    def linkLost(self, mayVanish: bool, arrived: int) -> None:
        """End the connection, because its link has ended."""

    def stopped(self) -> None:
        """Close the connection, because the process stops."""

    def expired(self) -> None:
        """Release the connection, because the peer did not close in time."""


class Membership(Protocol):
    """
    The link groups of a device: L{txrdma.smc.group.groups.LinkGroups}.

    @ivar ports: local ports, active ones first.
    @ivar closeNotifier: reports the end of connections to applications.
    """

    reactor: Any
    closeNotifier: CloseNotifier
    ports: tuple[Port, ...]
    reactorUse: ReactorUse
    timing: Timing
    isStopping: bool

    @property
    def canRest(self) -> bool: ...

    def ringSize(self) -> int:
        """Size of the next connection's ring, in bytes."""

    def checkStopped(self) -> None:
        """Check whether all peers have received everything, while the reactor stops."""

    def forgetting(self, group: Any) -> AbstractContextManager[None]:
        """Remove a group from the tables while it releases its resources."""

    def orphaned(self, stream: Member) -> None:
        """Record a connection that still has unread bytes after the end of its link."""

    def closeIdle(self, spared: Any) -> bool:
        """Close a link group without connections, other than C{spared}; return whether there was one."""


class LinkOwner(Protocol):
    """
    The group of a link: L{Group<txrdma.smc.group.group.Group>}.

    @ivar flows: flows of all connections, by alert token.
    @ivar hasPeerParted: the peer has ended the group in order, so all that it sent has arrived.
    @ivar isPeerLost: the TCP connection of its last connection was lost, as when the peer's process has died.
    """

    groups: Membership
    agreement: Agreement
    name: str
    hasPeerParted: bool
    isPeerLost: bool
    flows: dict[int, Flow]

    def add(self, stream: Member, flow: Flow) -> int:
        """Add a connection, and return its alert token."""

    def forget(self, stream: Member, element: Element, quiet: bool) -> None:
        """Remove an ended connection."""

    def linger(self, stream: Member) -> None:
        """Start the timeout for the peer's part of closing a connection."""

    def trim(self) -> None:
        """Delete unused buffers."""

    def trimSoon(self) -> None:
        """Delete unused buffers after the next flush."""

    def target(self, link: Any, named: Any, answer: Accept | Confirm) -> tuple[int, RKey]:
        """Return the first address of the peer's ring, and its remote key on a link."""

    def pollOtherLinks(self) -> None:
        """Poll all links that are not processing now."""

    def discard(self) -> None:
        """End the group if it was created for a handshake that has failed."""

    def control(self, link: Any, raw: bytes) -> None:
        """Process an LLC message."""

    def linkBroken(self, link: Any, text: str) -> None:
        """Handle the failure of a link's queue pair."""

    def linkFailed(self, link: Any, text: str) -> None:
        """End a link because of an exception."""
