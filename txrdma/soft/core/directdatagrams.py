"""
Datagrams of one queue pair without work requests, in the order of arrival.

See L{txrdma.interfaces.IDirectDatagrams} for the contract.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Sized
from typing import Final, Protocol

from txrdma.iba.types import QPN
from txrdma.iba.verbs import Addressed, AddressVector, Buffer, QPState
from txrdma.interfaces import IQueuePair
from txrdma.soft.core.route import Route

_RTS: Final = QPState.RTS

ReceivedDatagram = tuple[tuple[bytes, int], memoryview, int]
"""A datagram: its sender's address and queue pair, its bytes, and the ECN field of its IP header."""


class DirectDatagramRoute(Route, Protocol):
    """The route of a UD queue pair; with an C{inbox} received datagrams need no receives."""

    inbox: DirectDatagrams | None
    bufferBytes: int

    def put(self, address: AddressVector, qpn: QPN, qkey: int, head: Buffer, body: Buffer) -> bool:
        """Send a datagram immediately. Return False if it has to be posted instead."""

    def attachMulticast(self, group: str) -> None:
        """Also receive the datagrams to an IP multicast group."""

    def detachMulticast(self, group: str) -> None:
        """Stop receiving the datagrams to an IP multicast group."""


class DirectDatagrams:
    """
    The datagrams of a queue pair without work requests, for any route.

    @ivar route: the route, from RTR on; C{isOpen}: received datagrams are queued here.
    @ivar received: the queued datagrams, at most C{most}. The route appends them, and then calls C{ring}
        with whether the datagram is solicited, unless C{isTaking}.
    """

    def __init__(
        self,
        pair: IQueuePair,
        most: int,
        openInbox: Callable[[DirectDatagrams], Sized],
        ring: Callable[[bool], None],
    ) -> None:
        """
        @param pair: the queue pair: datagrams may be sent in RTS only.
        @param most: limit of queued datagrams; others are dropped, like those without a receive.
        @param openInbox: configures the queue pair to queue its datagrams here.
        @param ring: wakes the reader of the completion queue, given whether the datagram is solicited.
        """
        self.route: DirectDatagramRoute | None = None
        self.isOpen = False
        self.most, self.ring = most, ring
        self.received: list[ReceivedDatagram] = []
        self.isTaking = False
        self._pair, self._open = pair, openInbox

    @property
    def bufferBytes(self) -> int:
        return 0 if self.route is None else self.route.bufferBytes

    def openInbox(self) -> Sized:
        self.isOpen = True
        return self._open(self)

    def takeDatagrams(self, limit: int) -> Sequence[ReceivedDatagram]:
        route = self.route
        if route is not None:
            self.isTaking = True  # the caller needs no wakeup for these
            try:
                route.poll()
            finally:
                self.isTaking = False
        received = self.received
        if not received:
            return ()
        self.received = received[limit:]
        return received if len(received) <= limit else received[:limit]

    def putDatagram(self, address: Addressed, qpn: QPN, qkey: int, head: Buffer, body: Buffer) -> bool:
        route = self.route
        if route is None or self._pair.state is not _RTS:
            return False
        return route.put(address.address, qpn, qkey, head, body)

    # For the route.

    def clear(self) -> None:
        self.route = None
        self.received = []
