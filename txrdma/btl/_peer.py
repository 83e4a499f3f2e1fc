"""
Peers of a module: their windows, their messages that wait, and where they are in their lives.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import Final

from txrdma.btl._assembly import Assembly, Budget
from txrdma.btl._counters import Counters
from txrdma.btl._receiving import ReceiveWindow
from txrdma.btl._window import Message, SendWindow, Sent
from txrdma.btl.wire import BYE, CHUNK, CHUNK_LENGTH, FRAG, HEADER_LENGTH, PUT, PUT_LENGTH

OPEN: Final = 0
"""State of a peer in which messages go both ways."""

CLOSING: Final = 1
"""State of a peer to which nothing new is sent; the C{BYE} and what is before it are on their way."""

LEFT: Final = 2
"""State of a peer whose C{BYE} is here: it takes no messages, but may tell what it has taken."""

ENDED: Final = 3
"""State of a peer whose end the program has heard; its last segments are acknowledged for a while."""

GONE: Final = 4
"""State of a peer that the module knows no more."""

LINGER: Final = 5.0
"""Seconds for which the last segments of a peer are acknowledged: five of the longest timeouts."""


class Peer:
    """
    A peer of a module.

    @ivar sender: number that the peer has given to this end; C{name}: number that this end has given to the
        peer.
    @ivar addresses: the peer's, on the two channels.
    @ivar context: whatever the module's program wants to know the peer by.
    @ivar queuedBytes: of messages that have not arrived; for back pressure.
    """

    __slots__ = (
        *(
            "_fragment",
            "addresses",
            "assembly",
            "bye",
            "context",
            "heardAt",
            "isLosing",
            "isReady",
            "isTouched",
        ),
        *(
            "lingerUntil",
            "name",
            "queuedBytes",
            "received",
            "sender",
            "sent",
            "state",
            "urgent",
            "usual",
            "wakeAt",
        ),
    )

    def __init__(
        self,
        name: int,
        sender: int,
        addresses: tuple[Hashable, Hashable],
        firstSent: int,
        firstReceived: int,
        context: object,
        counters: Counters,
        budget: Budget,
        giveUp: float,
        now: float,
    ) -> None:
        self.name, self.sender, self.addresses, self.context = name, sender, addresses, context
        self.sent = SendWindow(firstSent, counters, giveUp)
        self.received = ReceiveWindow(firstReceived)
        self.assembly = Assembly(budget)
        self.urgent: deque[Message] = deque()
        self.usual: deque[Message] = deque()
        self.queuedBytes = 0
        self.state = OPEN
        self.bye: int | None = None  # sequence number of the peer's last segment
        self.lingerUntil = 0.0
        self.heardAt = now
        self.wakeAt: float | None = None  # entry in the module's heap that counts
        self.isReady = self.isLosing = self.isTouched = False
        self._fragment = 0

    def hasQueued(self) -> bool:
        """Tell whether a message waits that is not all sent; forget those that are over."""
        for queue in (self.urgent, self.usual):
            while queue and queue[0].isOver:
                queue.popleft()
        return bool(self.urgent or self.usual)

    def isIdle(self) -> bool:
        """Tell whether all that was to be sent has arrived."""
        return not self.sent.outstanding and not self.hasQueued()

    def turn(self, mtu: int) -> deque[Message]:
        """
        Choose the queue whose first message goes on; L{hasQueued} has found one.

        An urgent message that needs chunks waits for the end of another one in chunks: so a peer that has no
        room for a second one has the first one first, and finds room.
        """
        if not self.urgent or not self.usual:
            return self.urgent or self.usual
        begun = self.usual[0]
        if begun.begun and begun.kind == FRAG and self.urgent[0].total > mtu - HEADER_LENGTH:
            return self.usual
        return self.urgent

    def cut(self, queue: deque[Message], mtu: int) -> Sent:
        """Make the next segment of the first message of a queue."""
        message = queue[0]
        begin, kind, total = message.begun, message.kind, message.total
        head = PUT_LENGTH if kind == PUT else HEADER_LENGTH
        if kind == FRAG and total > mtu - HEADER_LENGTH:
            kind, head = CHUNK, CHUNK_LENGTH
            if not begin:
                self._fragment = (self._fragment + 1) & 0xFFFFFFFF or 1
                message.fragment = self._fragment
        end = min(total, begin + mtu - head)
        piece = message.data if end - begin == total else memoryview(message.data)[begin:end]
        message.begun = end
        message.waiting += 1
        if end == total:
            queue.popleft()
        if kind == CHUNK:
            return Sent(kind, message.tag, piece, message, message.fragment, total, 0, begin)
        return Sent(kind, message.tag, piece, message, 0, 0, message.region, message.offset + begin)

    def takeAll(self) -> list[Message]:
        """Take all messages that are not over, from the queues and from the window."""
        found = {id(each): each for each in (*self.sent.unfinished(), *self.urgent, *self.usual)}
        self.urgent.clear()
        self.usual.clear()
        return [each for each in found.values() if not each.isOver and each.kind != BYE]

    def deadline(self, keepAlive: float) -> float | None:
        """Time at which something is due for this peer, acknowledgements apart."""
        if self.state == GONE:
            return None
        times = [self.sent.deadline(), self.assembly.deadline()]
        if self.state >= LEFT:
            times.append(self.lingerUntil)
        elif keepAlive and self.isIdle():
            times.append(self.heardAt + keepAlive)
        return min((each for each in times if each is not None), default=None)
