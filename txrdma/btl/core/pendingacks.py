"""Acknowledgements and refusals of a module that wait to be sent as separate packets."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from txrdma.btl.core.counters import ModuleCounters
from txrdma.btl.core.events import Packet
from txrdma.btl.core.peer import Peer, REMOVED
from txrdma.btl.wire import encodeHead, REFUSED, ROOM_UNKNOWN

ACK_DELAY: Final = 50e-6
"""
Seconds that an acknowledgement waits for a segment that can carry it, unless a batch of packets ends before.
"""

MOST_REFUSALS: Final = 256
"""Largest number of queued refusals; the oldest are dropped for new ones."""

SENDERS_SECONDS: Final = 0.1
"""Seconds of a period in which peers are counted that receive acknowledgements."""


class PendingAcks:
    """
    The pending acknowledgements and refusals of a module. All use the command channel of the path on which
    the last packet has arrived.

    They advertise how many segments a peer may have in flight: an equal share of the buffers of the port. The
    peers that share them are those that received acknowledgements in this period or in the one before.

    @ivar peers: peers that wait for an acknowledgement, the longest waiting first.
    @ivar refusals: peers, each with the sequence number of a refused segment.
    @ivar hasBatchEnded: whether all received packets are processed, so that acknowledgements need not wait.
    """

    __slots__ = (
        *("_before", "_counters", "_period", "_rooms", "_senders", "_since"),
        *("hasBatchEnded", "peers", "refusals"),
    )

    def __init__(self, counters: ModuleCounters, rooms: Sequence[int]) -> None:
        self._counters, self._rooms = counters, rooms
        self._period, self._senders, self._before = 1, 0, 0
        self._since = 0.0
        self.peers: dict[Peer, None] = {}
        self.refusals: deque[tuple[Peer, int]] = deque(maxlen=MOST_REFUSALS)
        self.hasBatchEnded = False

    def deadline(self, credits: list[int]) -> float | None:
        """Time at which an acknowledgement is due; None if there is none that can be sent."""
        for peer in self.peers:
            if credits[peer.answerOn] > 0:
                return peer.received.owedSince + ACK_DELAY
        return None

    def sendRefusals(
        self, packets: list[Packet], credits: list[int], lose: Callable[[Peer, str, Exception], None]
    ) -> None:
        """
        Append packets that refuse segments, as far as there are credits.

        @param lose: called with a peer whose refusal cannot be made, the reason, and the exception.
        """
        while self.refusals and credits[self.refusals[0][0].answerOn] > 0:
            peer, sequence = self.refusals.popleft()
            if peer.state != REMOVED:
                try:
                    head = encodeHead(REFUSED, peer.sender, sequence, None, 0, 0)
                    packets.append(Packet(peer, peer.answerOn, head, b""))
                except Exception as error:
                    lose(peer, "a refusal to the peer could not be made", error)
                    continue
                credits[peer.answerOn] -= 1

    def sendAcknowledgements(
        self,
        packets: list[Packet],
        credits: list[int],
        now: float,
        lose: Callable[[Peer, str, Exception], None],
    ) -> None:
        """
        Append the acknowledgements that are due, as far as there are credits.

        @param lose: called with a peer whose acknowledgement cannot be made, the reason, and the exception.
        """
        isDue, self.hasBatchEnded = self.hasBatchEnded, False
        if now - self._since > SENDERS_SECONDS:
            self._period, self._since = self._period + 1, now
            self._before, self._senders = self._senders, 0
        for peer in list(self.peers):
            received = peer.received
            if not isDue and received.owedSince + ACK_DELAY > now:
                continue
            channel = peer.answerOn
            if credits[channel] <= 0:
                self.hasBatchEnded = isDue  # so that it does not wait for the delay when credits return
                continue
            try:
                packets.append(Packet(peer, channel, *peer.acknowledgement(self._roomFor(peer))))
                received.ackSent()
            except Exception as error:
                lose(peer, "an acknowledgement to the peer could not be made", error)
                continue
            self.peers.pop(peer, None)
            credits[channel] -= 1
            self._counters.ackSends += 1

    def _roomFor(self, peer: Peer) -> int:
        """Return how many segments a peer may have in flight on the path on which it was received last."""
        if not self._rooms:
            return ROOM_UNKNOWN
        if peer.received.period != self._period:
            peer.received.period = self._period
            self._senders += 1
        room = self._rooms[peer.answerOn >> 1] // max(self._before, self._senders)
        return max(1, min(room, ROOM_UNKNOWN - 1))
