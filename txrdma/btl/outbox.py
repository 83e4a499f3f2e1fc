"""
Messages that the peer's program cannot receive yet.

Each tag has a window in bytes (L{txrdma.btl.core.flow}) beyond what the peer's program has received. A tag
with a handler needs no window, because its messages are handled when they arrive: when the peer has set a
handler, it sends the tag's number, and the tag is unlimited from then on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from txrdma.btl.core.flow import MESSAGE, MessageFlow
from txrdma.btl.core.peer import OPEN, Peer
from txrdma.btl.wire import HEADER_LENGTH
from txrdma.error import PeerViolation
from txrdma.iba.verbs import Buffer

Send = Callable[[int, Buffer, object, bool], None]
"""Sends a message: tag, bytes, context, whether it is urgent."""


class _Waiting:
    """A message that waits for the window of its tag."""

    __slots__ = ("context", "data", "isUrgent", "tag")

    def __init__(self, tag: int, data: Buffer, context: object, isUrgent: bool) -> None:
        self.tag, self.data, self.context, self.isUrgent = tag, data, context, isUrgent


class _Window:
    """
    The window of one tag, and the messages that wait for it.

    @ivar urgent: number of waiting messages that are urgent, which are the first ones.
    """

    __slots__ = ("flow", "urgent", "waiting")

    def __init__(self) -> None:
        self.flow = MessageFlow()
        self.urgent = 0
        self.waiting: deque[_Waiting] = deque()


class Outbox:
    """
    The messages of one connection that wait for the window of their tag.

    @ivar unlimited: tags without a window.
    @ivar bytes: bytes of the messages that wait.
    """

    def __init__(self, send: Send, peer: Peer) -> None:
        """@param peer: the peer, whose packet size determines which messages are short."""
        self._peer = peer
        self.unlimited: set[int] = set()
        self.bytes = 0
        self._send = send
        self._windows: dict[int, _Window] = {}

    def send(
        self, tag: int, data: Buffer, context: object, isUrgent: bool = False, key: int | None = None
    ) -> None:
        """
        Send a message of a limited tag, or queue it; urgent ones are queued before the others.

        @param data: if it does not fit into a packet, it must not change while it is queued.
        @param key: the tag whose window and order the message shares; None for its own tag.
        """
        number = tag if key is None else key
        window = self._windows.get(number)
        if window is None:
            window = self._windows[number] = _Window()
        if window.flow.maySend(len(data)) and not (window.urgent if isUrgent else window.waiting):
            window.flow.send(len(data))
            self._send(tag, data, context, isUrgent)
            return
        if type(data) is not bytes:  # the program may change short messages, as it may those in the core
            data = bytes(data) if len(data) <= self._peer.mtu - HEADER_LENGTH else memoryview(data)
        message = _Waiting(tag, data, context, isUrgent)
        self.bytes += len(data)
        if isUrgent:
            window.waiting.insert(window.urgent, message)
            window.urgent += 1
        else:
            window.waiting.append(message)

    def takes(self, tag: int, messages: list[Buffer]) -> bool:
        """Count messages that may all be sent now, and return True; else return False."""
        window = self._windows.setdefault(tag, _Window())
        length = sum(map(len, messages)) + (len(messages) - 1) * MESSAGE
        if window.waiting or not window.flow.mayHold(length):
            return False
        window.flow.send(length)
        return True

    def received(self, tag: int, total: int) -> None:
        """
        Process a report of the peer: how many bytes of a tag its program has received.

        @raise PeerViolation: more bytes than were sent.
        """
        window = self._windows.get(tag)
        if window is None and tag in self.unlimited:
            return  # the report was sent before the peer's program has set a handler, and arrived later
        if window is None:
            raise PeerViolation(f"the peer has received messages of tag {tag}, which were not sent")
        window.flow.acknowledge(total)
        self._admit(window)

    def _admit(self, window: _Window) -> None:
        """Send waiting messages as far as the window has room, unless the connection closes."""
        waiting = window.waiting
        while waiting and self._peer.state == OPEN and window.flow.maySend(len(waiting[0].data)):
            window.flow.send(len(waiting[0].data))
            self._sendNext(window)

    def withdrawn(self, tag: int, length: int) -> None:
        """Note that a message with a tag, which the window has admitted, is not sent after all."""
        window = self._windows.get(tag)
        if window is not None:
            window.flow.withdraw(length)
            self._admit(window)

    def unlimit(self, tag: int) -> None:
        """Send all messages of a tag, now and later, because the peer has a handler for it."""
        self.unlimited.add(tag)
        window = self._windows.pop(tag, None)
        while window is not None and window.waiting:
            self._sendNext(window)

    def _sendNext(self, window: _Window) -> None:
        message = window.waiting[0]
        # First: a message that cannot be sent fails at the end, with the others.
        self._send(message.tag, message.data, message.context, message.isUrgent)
        window.waiting.popleft()
        window.urgent -= message.isUrgent
        self.bytes -= len(message.data)

    def recall(self, context: object) -> bool:
        """Remove the message with this context, and send others that fit. Return whether it was found."""
        for window in self._windows.values():
            for message in window.waiting:
                if message.context is context:
                    window.waiting.remove(message)
                    window.urgent -= message.isUrgent
                    self.bytes -= len(message.data)
                    self._admit(window)  # shorter ones after it may fit
                    return True
        return False

    def isEmpty(self) -> bool:
        return not any(window.waiting for window in self._windows.values())

    def drop(self, tag: int) -> None:
        """Remove the messages of a tag."""
        window = self._windows.pop(tag, None)
        if window is not None:
            self.bytes -= sum(len(each.data) for each in window.waiting)

    def takeAll(self) -> list[object]:
        """Remove all waiting messages; return the contexts of their senders."""
        waiting = [each.context for window in self._windows.values() for each in window.waiting]
        self._windows.clear()
        self.bytes = 0
        return waiting
