"""Lines between a coordinator and its members: UNIX sockets, by which they report and forward packets."""

from __future__ import annotations

from collections.abc import Callable

from twisted.logger import Logger

from txrdma.error import WireError
from txrdma.iba.types import GID
from txrdma.iba.verbs import Buffer
from txrdma.kit.logs import errorText, RateLimitedLogger
from txrdma.soft.host._messages import decode, ForwardedPacket, HostMessageKind, LONGEST_PACKET
from txrdma.soft.shared.unixpackets import PacketSocket

_rateLimited = RateLimitedLogger(Logger())


class HostLine:
    """
    A line between the coordinator and a member.

    @ivar isMember: the other end is a member, so this device is the coordinator.
    @ivar share: the member's share, at the coordinator's end.
    @ivar wasAnswered: whether the coordinator has answered a ping, at the member's end.
    """

    def __init__(
        self,
        address: str,
        line: PacketSocket,
        isMember: bool,
        received: Callable[[HostLine, object, memoryview], None],
        ended: Callable[[HostLine], None],
    ) -> None:
        """
        @param address: the address whose port 4791 is shared.
        @param received: processes a message, and the packet that it contains. If it raises ValueError, the
            line is closed.
        @param ended: called when the line has ended.
        """
        self.line = line
        self.isMember = isMember
        self.share: int | None = None
        self.wasAnswered = False
        self._address = address
        self._received, self._ended = received, ended
        line.start(self)

    def messageReceived(self, message: bytes, descriptors: list[int]) -> None:
        """Process a message; an invalid one closes the line."""
        try:
            self._received(self, *decode(message))
        except (WireError, ValueError) as error:
            _rateLimited.warn(
                self._address,
                "port 4791 of {address}: invalid message of process {pid}: {error}",
                address=self._address,
                pid=self.line.process.pid,
                error=errorText(error),
            )
            self.line.close(str(error))

    def descriptorsLost(self, message: bytes) -> None:
        """Close the line: its messages have no descriptors."""
        self.line.close("unexpected descriptors")

    def ended(self, reason: str) -> None:
        self._ended(self)

    def forward(self, source: tuple[str, int], packet: Buffer) -> None:
        """Pass on a packet; it is dropped while the other end does not read."""
        if len(packet) <= LONGEST_PACKET and not self.line.isWaiting:
            address, port = source
            head = ForwardedPacket(kind=HostMessageKind.PACKET, port=port, address=GID.fromIP(address))
            self.line.send(head.encode() + packet)
