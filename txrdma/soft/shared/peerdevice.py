"""
A device with which memory is shared: messages and doorbells are sent to it.

L{txrdma.soft.shared.sharedmemoryport} processes its messages, and fails the local queue pairs when its
process ends.
"""

from __future__ import annotations

from collections.abc import Callable

from txrdma.soft.shared._doorbells import DoorbellChannel, LocalDoorbells
from txrdma.soft.shared._rendezvous import DoorbellNotice, RegionRequest, RendezvousKind
from txrdma.soft.shared.unixpackets import Line
from txrdma.unix.sockets import isSameUser


class PeerDevice:
    """
    A device of another process on this host, or another device of this process.

    @ivar name: IP address and UDP port of the device.
    @ivar lines: connections to it; messages are sent by the first.
    @ivar isLost: messages can no longer be sent.
    @ivar mappedBytes: bytes of its memory that queue pairs have mapped.
    """

    def __init__(self, name: tuple[str, int]) -> None:
        self.name = name
        self.lines: list[Line] = []
        self.isLost = False
        self.mappedBytes = 0
        self.doorbells = LocalDoorbells()

    @property
    def isTrusted(self) -> bool:
        """Whether its process belongs to the same user, by the credentials that the kernel reports."""
        return bool(self.lines) and isSameUser(self.lines[0].process.user)

    def send(self, message: bytes, descriptors: tuple[int, ...] = ()) -> None:
        if self.lines:
            self.lines[0].send(message, descriptors)

    def regionRequested(
        self, parsed: RegionRequest, answer: Callable[[bytes, tuple[int, ...]], None]
    ) -> None:
        """Answer a request of the peer for a local region."""
        raise NotImplementedError

    def isReading(self) -> bool:
        """Return whether the peer has read all messages; if it has, process its answers that have arrived."""
        if any(line.isUnread for line in self.lines):
            return False
        for line in tuple(self.lines):
            line.receiveNow()
        return True

    def doorbellNumber(self, channel: DoorbellChannel) -> int:
        """
        Return the number of a channel's doorbell, sent to the peer on first use.

        @raise txrdma.error.RDMAError: the channel is closed, or no descriptor is left, or the peer accepts
            no more doorbells.
        """
        number = self.doorbells.numberOf(channel)
        if number is None:
            for gone in self.doorbells.removeClosed():
                self.send(DoorbellNotice(kind=RendezvousKind.DOORBELL_CLOSED, number=gone).encode())
            descriptors: tuple[int, ...] = ()
            if self.isTrusted:
                page = channel.doorbellPage
                descriptors = (channel.doorbell,) if page < 0 else (channel.doorbell, page)
            number = self.doorbells.assign(channel)
            bell = DoorbellNotice(kind=RendezvousKind.DOORBELL, number=number)
            try:
                self.send(bell.encode(), descriptors)
            except BaseException:
                self.doorbells.forget(number)
                raise
        return number
