"""
Interfaces of the objects above a link: its connections, its group, and all groups of the device.

The classes that implement them document the methods.
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
    """A connection of a link: L{Stream<txrdma.smc.stream.stream.Stream>}."""

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

    def hasDelivered(self, total: int) -> bool: ...
    def askForUpdate(self) -> None: ...
    def remoteBuffersGone(self, rkeys: Sequence[RKey]) -> None: ...
    def rebind(self, link: Any) -> None: ...
    def move(self, link: Any, bearing: RemoteBuffer, unacknowledged: Sequence[Unacknowledged]) -> None: ...
    def linkLost(self, mayVanish: bool, arrived: int) -> None: ...
    def stopped(self) -> None: ...
    def expired(self) -> None: ...


class Membership(Protocol):
    """The link groups of a device: L{txrdma.smc.group.groups.LinkGroups}."""

    reactor: Any
    closeNotifier: CloseNotifier
    ports: tuple[Port, ...]
    reactorUse: ReactorUse
    timing: Timing
    isStopping: bool

    @property
    def canRest(self) -> bool: ...

    def ringSize(self) -> int: ...
    def checkStopped(self) -> None: ...
    def forgetting(self, group: Any) -> AbstractContextManager[None]: ...
    def orphaned(self, stream: Member) -> None: ...
    def closeIdle(self, spared: Any) -> bool: ...


class LinkOwner(Protocol):
    """
    The group of a link: L{Group<txrdma.smc.group.group.Group>}.

    @ivar flows: flows of all connections, by alert token.
    @ivar hasPeerParted: the peer has ended the group in order, so all that it sent has arrived.
    @ivar isPeerLost: the TCP connection of its last connection was lost: the peer may have died.
    """

    groups: Membership
    agreement: Agreement
    name: str
    hasPeerParted: bool
    isPeerLost: bool
    flows: dict[int, Flow]

    def add(self, stream: Member, flow: Flow) -> int: ...
    def forget(self, stream: Member, element: Element, quiet: bool) -> None: ...
    def linger(self, stream: Member) -> None: ...
    def trim(self) -> None: ...
    def trimSoon(self) -> None: ...
    def target(self, link: Any, named: Any, answer: Accept | Confirm) -> tuple[int, RKey]: ...
    def pollOtherLinks(self) -> None: ...
    def discard(self) -> None: ...
    def control(self, link: Any, raw: bytes) -> None: ...
    def linkBroken(self, link: Any, text: str) -> None: ...
    def linkFailed(self, link: Any, text: str) -> None: ...
