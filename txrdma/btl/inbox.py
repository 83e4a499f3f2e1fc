"""
Received messages whose tags have no handler, until the program receives them.

Each tag has a window in bytes (L{txrdma.btl.core.flow}): further messages are queued by the sender, in its
L{txrdma.btl.outbox}.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, TYPE_CHECKING

from twisted.internet.defer import Deferred

from txrdma.btl.core.assembly import LONGEST
from txrdma.btl.core.flow import MESSAGE, MessageFlow
from txrdma.error import InvalidRequest, PeerViolation
from txrdma.iba.verbs import Buffer
from txrdma.messages.memory import octets

if TYPE_CHECKING:
    from txrdma.kit.buffers import WritableBuffer

MOST_UNRECEIVED: Final = 2 * LONGEST
"""
Bytes of the messages of one connection that its program has not received, with 64 for each message: those of
a longest message, and of the windows of sixteen tags.
"""


MOST_TAGS: Final = 1024
"""Tags without a handler in which one peer may send messages before the program has received any."""


class _Receive:
    """
    A program's request for the next message, or for all messages, of a tag.

    @ivar into: where the message is stored.
    """

    __slots__ = ("into", "isForAll", "outcome")

    def __init__(self, outcome: Deferred[Any], into: memoryview | None, isForAll: bool) -> None:
        self.outcome, self.into, self.isForAll = outcome, into, isForAll

    def fire(self, data: Buffer) -> None:
        """Report a message; it is an error if it is longer than the buffer (see C{fits})."""
        outcome, into = self.outcome, self.into
        if into is None:
            whole = data if type(data) is bytes else bytes(data)
            outcome.callback([whole] if self.isForAll else whole)
            return
        length, most = len(data), len(into)
        if length <= most:
            into[:length] = data
        into.release()
        if length <= most:
            outcome.callback(length)
        else:
            outcome.errback(InvalidRequest(f"the message has {length} bytes, and the buffer {most}"))

    def fits(self, length: int) -> bool:
        """Return whether a message of this length can be stored."""
        return self.into is None or length <= len(self.into)


class _TagQueue:
    """
    The messages of one tag that the program has not received, and its requests for messages.

    @ivar isServed: messages are reported to requests. A callback that requests another one gets it after
        all that were requested before.
    """

    __slots__ = ("flow", "isServed", "messages", "requests")

    def __init__(self) -> None:
        self.flow = MessageFlow()
        self.isServed = False
        self.messages: deque[bytes] = deque()
        self.requests: deque[_Receive] = deque()


class Inbox:
    """
    The received messages of one connection whose tags have no handler.

    @ivar mostBytes: limit of their bytes.
    """

    def __init__(self, report: Callable[[int, int], None]) -> None:
        """@param report: reports to the peer how many bytes of a tag the program has received in total."""
        self.mostBytes = MOST_UNRECEIVED
        self._report = report
        self._tags: dict[int, _TagQueue] = {}
        self._unreceived: set[int] = set()  # tags of which the program has not received any message
        self._bytes = 0
        self._end: Exception | None = None

    def receive(self, tag: int, into: WritableBuffer | None, isForAll: bool) -> Deferred[Any]:
        """
        Return the next message of a tag, or the number of its bytes in C{into}, or a list of all messages.

        @raise InvalidRequest: the buffer is read-only or not contiguous.
        """
        view = None
        if into is not None:
            view = memoryview(octets(into))
            if view.readonly:
                raise InvalidRequest("a read-only buffer cannot receive a message")
        queue = self._tags.setdefault(tag, _TagQueue())
        self._unreceived.discard(tag)

        def cancel(_: Deferred[Any]) -> None:
            queue.requests.remove(request)
            if request.into is not None:
                request.into.release()

        request = _Receive(Deferred(cancel), view, isForAll)
        queue.requests.append(request)
        self._serve(tag, queue)
        return request.outcome

    def add(self, tag: int, data: memoryview) -> None:
        """
        Give a message to the first request for it, or queue it.

        @raise PeerViolation: the peer has exceeded the window of the tag, or of the connection.
        """
        queue = self._queueOf(tag)
        queue.flow.receive(len(data))
        requests = queue.requests
        if requests and not queue.messages and requests[0].fits(len(data)):
            self._countHandled(tag, queue, len(data))
            requests.popleft().fire(data)
            return
        self._append(queue, [bytes(data)], len(data))
        self._serve(tag, queue)  # after it is queued: an errback may set a handler, which gets it

    def addMany(self, tag: int, messages: list[memoryview]) -> None:
        """
        Give the messages of a packet to requests, or queue them: see L{add}.

        @raise PeerViolation: the peer has exceeded the window of the tag, or of the connection.
        """
        queue = self._queueOf(tag)
        total = sum(map(len, messages)) + (len(messages) - 1) * MESSAGE
        queue.flow.receive(total)
        received, requests = list(map(bytes, messages)), queue.requests
        if requests and requests[0].isForAll and not queue.messages:
            self._countHandled(tag, queue, total)
            requests.popleft().outcome.callback(received)
        else:
            self._append(queue, received, total)
            self._serve(tag, queue)

    def _queueOf(self, tag: int) -> _TagQueue:
        """Return the messages of a tag for which the peer sends messages."""
        queue = self._tags.get(tag)
        if queue is None:
            if len(self._unreceived) >= MOST_TAGS:
                raise PeerViolation(f"more than {MOST_TAGS} tags have unreceived messages")
            self._unreceived.add(tag)
            queue = self._tags[tag] = _TagQueue()
        return queue

    def _append(self, queue: _TagQueue, messages: list[bytes], length: int) -> None:
        self._bytes += length + MESSAGE
        if self._bytes > self.mostBytes:
            raise PeerViolation(f"messages of {self._bytes} bytes were not received")
        queue.messages += messages

    def _serve(self, tag: int, queue: _TagQueue) -> None:
        """Report queued messages to requests; after the end, fail those for which there is none."""
        if queue.isServed:
            return
        queue.isServed = True
        try:
            self._reportMessages(tag, queue)
        finally:
            queue.isServed = False
        if self._end is not None:
            self._fail(queue, self._end)

    def _reportMessages(self, tag: int, queue: _TagQueue) -> None:
        """Report queued messages to requests."""
        requests, messages = queue.requests, queue.messages
        while requests and messages:
            request = requests[0]
            if request.isForAll:
                received = list(messages)
                messages.clear()
                length = sum(map(len, received)) + (len(received) - 1) * MESSAGE
                self._bytes -= length + MESSAGE
                self._countHandled(tag, queue, length)
                requests.popleft().outcome.callback(received)
            else:
                data = self._take(tag, queue) if request.fits(len(messages[0])) else messages[0]
                requests.popleft().fire(data)

    def _take(self, tag: int, queue: _TagQueue) -> bytes:
        """Remove and return the first queued message of a tag."""
        message = queue.messages.popleft()
        self._bytes -= len(message) + MESSAGE
        self._countHandled(tag, queue, len(message))
        return message

    def giveBack(self, tag: int, messages: Sequence[bytes]) -> None:
        """Queue received messages before all others of their tag, since the program did not get them."""
        queue = self._tags.setdefault(tag, _TagQueue())
        for each in reversed(messages):
            queue.messages.appendleft(each)
            queue.flow.giveBack(len(each))
            self._bytes += len(each) + MESSAGE
        self._serve(tag, queue)

    def _countHandled(self, tag: int, queue: _TagQueue, length: int) -> None:
        queue.flow.handle(length)
        total = queue.flow.takeReport()
        if total is not None:
            self._report(tag, total)

    def close(self, tag: int) -> deque[bytes]:
        """
        Return the queued messages of a tag, which gets a handler, so that further messages bypass the inbox.

        @raise InvalidRequest: the program waits for a message of this tag.
        """
        queue = self._tags.get(tag)
        if queue is None:
            return deque()
        if queue.requests:
            raise InvalidRequest(f"the program waits for a message of tag {tag}, which cannot have a handler")
        del self._tags[tag]
        self._unreceived.discard(tag)
        self._bytes -= sum(len(each) + MESSAGE for each in queue.messages)
        return queue.messages

    def end(self, error: Exception) -> None:
        """Fail all requests. Queued messages can still be received."""
        self._end = error
        for queue in list(self._tags.values()):
            if not queue.isServed:
                self._fail(queue, error)

    def _fail(self, queue: _TagQueue, error: Exception) -> None:
        while queue.requests:
            request = queue.requests.popleft()
            if request.into is not None:
                request.into.release()
            request.outcome.errback(error)

    def drop(self) -> None:
        for queue in self._tags.values():
            queue.messages.clear()
        self._bytes = 0
