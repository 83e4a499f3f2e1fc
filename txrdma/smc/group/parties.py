"""
The parties that a link has to do with: its group, all groups of the device, and the connections on it.

All of them know links; here is as much of them as links, and groups, have to know.
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
    def hasReceivedEnd(self) -> bool: ...
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

    def rebind(self, link: Any) -> None:
        """Begin on another link of the group, as the one that the handshake has named has failed."""

    def move(self, link: Any, bearing: RemoteBuffer, kept: Sequence[Unacknowledged]) -> None:
        """Go on by another link of the group, as its own has failed."""

    def linkLost(self, mayVanish: bool, arrived: int) -> None:
        """End the connection, because its link is gone."""

    def stopped(self) -> None:
        """The process ends: take leave of the peer."""

    def expired(self) -> None:
        """The peer has not done its part of the close in time."""


class Membership(Protocol):
    """
    The link groups of a device, as each of them sees them: L{txrdma.smc.group.groups.LinkGroups}.

    @ivar ports: where links may begin; active ones first.
    @ivar closeNotifier: ends of connections that are still to be told.
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
        """Bytes of the next connection's buffer."""

    def checkStopped(self) -> None:
        """Fewer peers may be without what was written for them."""

    def forgetting(self, group: Any) -> AbstractContextManager[None]:
        """Let no connection find a group any more, while it lets go of everything."""

    def orphaned(self, stream: Member) -> None:
        """A connection lives on without its link."""

    def closeIdle(self, spared: Any) -> bool:
        """Close a link group without connections, but not C{spared}; whether there was one."""


class LinkOwner(Protocol):
    """
    A link group, as its links see it: L{Group<txrdma.smc.group.group.Group>}.

    @ivar flows: of all its connections, by alert token.
    @ivar hasPeerParted: the peer has ended it in order: all is here that it has sent.
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
        """Let go of a connection that is over."""

    def linger(self, stream: Member) -> None:
        """The application is gone, the peer has some time for its part."""

    def trim(self) -> None:
        """Take back buffers that nobody uses."""

    def trimSoon(self) -> None:
        """Trim at the end of a turn of one of the links that there are."""

    def target(self, link: Any, named: Any, answer: Accept | Confirm) -> tuple[int, RKey]:
        """The place where the peer's ring begins on a link, and its key there."""

    def pollOtherLinks(self) -> None:
        """Take in what links have brought whose turn it is not."""

    def discard(self) -> None:
        """The handshake that the group was perhaps made for has failed."""

    def control(self, link: Any, raw: bytes) -> None:
        """A link has brought an LLC message."""

    def linkBroken(self, link: Any, text: str) -> None:
        """A link's queue pair is of no more use; what has arrived by it is taken in."""

    def linkFailed(self, link: Any, text: str) -> None:
        """An error of ours, or of the device's, has ended a link."""
