"""
Requests that the peer answers: reads of its memory, and calls of its functions.

A request is a message with a number, which its answer repeats. Each end limits its own unanswered requests,
further ones are queued, so that a conforming peer never exceeds the limits of the answering end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from inspect import iscoroutine
from struct import Struct
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary

from twisted.internet.defer import CancelledError, Deferred
from twisted.logger import Logger, LogLevel
from twisted.python.failure import Failure

from txrdma.btl.core.assembly import LONGEST
from txrdma.btl.errors import CallFailed
from txrdma.btl.lifeline import Done
from txrdma.error import InvalidRequest, PeerViolation
from txrdma.iba.verbs import Buffer
from txrdma.kit.logs import RateLimitedLogger
from txrdma.kit.strings import escaped
from txrdma.messages.memory import octets

_log = Logger()
_rateLimited = RateLimitedLogger(_log)

MOST_CALLS: Final = 256
"""Unanswered calls: further ones of this end are queued; of the peer, twice as many are accepted."""

MOST_CALL_BYTES: Final = 64 << 20
"""
Bytes of unanswered calls, or one call of any length: further ones of this end are queued; of the peer, twice
as many bytes are accepted. With this many bytes of unacknowledged answers, no further function is called.
"""

REPORTED: Final = 1 << 16
"""Bytes of answers of which only the last one reports its arrival, for all of them."""

LONGEST_TEXT: Final = 1024
"""Characters of the text of an exception that are sent to the caller."""

CALL: Final = Struct(">IH")
"""The head of a call: its number and tag."""

ANSWER: Final = Struct(">IB")
"""The head of an answer: the number of the call, and whether it has failed."""

CANCEL: Final = Struct(">I")
"""The number of a call whose answer is no longer needed."""

Function = Callable[[bytes], Any]
"""
A function that answers calls: it gets the data of a call and returns a buffer, None for no bytes, or a
Deferred or coroutine with one.
"""

_Method = TypeVar("_Method", bound=Callable[..., Any])


def answers(tag: int) -> Callable[[_Method], _Method]:
    """
    Make a method of a protocol answer calls with a tag, as C{answer} of the transport does for a function.
    """

    def decorate(method: _Method) -> _Method:
        method.answersTag = tag  # type: ignore[attr-defined]  # read by answering()
        return method

    return decorate


_methods: Final[WeakKeyDictionary[type, dict[int, str]]] = WeakKeyDictionary()
"""The names of the methods of each class that are decorated with L{answers}, by their tags."""


def answering(protocol: object) -> Iterator[tuple[int, Function]]:
    """Return the tags and methods of a protocol that are decorated with L{answers}."""
    kind = type(protocol)
    methods = _methods.get(kind)
    if methods is None:
        methods = _methods[kind] = dict(_decorated(kind))
    for tag, name in methods.items():
        yield tag, getattr(protocol, name)


def _decorated(kind: type) -> Iterator[tuple[int, str]]:
    for name in dir(kind):
        with _log.failuresHandled("{kind}.{name} answers no calls, after an error", kind=kind, name=name):
            tag = getattr(getattr(kind, name, None), "answersTag", None)
            if tag is not None:
                yield tag, name


class PendingRequests:
    """
    The unanswered requests of one kind.

    @ivar most: number of requests that may be sent, of at most C{mostBytes} bytes, or one of any length;
        further ones are queued.
    @ivar bytes: bytes of queued requests.
    """

    def __init__(self, send: Callable[[bytes], None], sendCancel: Callable[[int], None], most: int) -> None:
        """
        @param sendCancel: called with the number of a request that was sent, when its Deferred is cancelled.
        """
        self.most, self.mostBytes = most, MOST_CALL_BYTES
        self.bytes = 0
        self._send, self._sendCancel = send, sendCancel
        self._queued: dict[int, bytes] = {}
        self._sent: dict[int, int] = {}  # bytes of unanswered requests, including those that were cancelled
        self._sentBytes = 0
        self._outcomes: dict[int, Deferred[Any]] = {}
        self._last = 0

    def _maySend(self, length: int) -> bool:
        """Return whether another request may be sent now."""
        count = len(self._sent)
        return not count or (count < self.most and self._sentBytes + length <= self.mostBytes)

    def request(self, encode: Callable[[int], bytes]) -> Deferred[Any]:
        """
        Send a request, or queue it.

        @param encode: returns the message of a request with this number.
        @return: a Deferred for whoever calls L{answered}.
        """
        number = self._last = (self._last + 1) & 0xFFFFFFFF
        outcome: Deferred[Any] = Deferred(lambda _: self._cancel(number))
        whole = encode(number)
        if not self._queued and self._maySend(len(whole)):
            self._sendNow(number, whole)
        else:
            self._queued[number] = whole
            self.bytes += len(whole)
        self._outcomes[number] = outcome
        return outcome

    def _sendQueued(self) -> None:
        while self._queued:
            number, whole = next(iter(self._queued.items()))
            if not self._maySend(len(whole)):
                return
            self._take(number)
            self._sendNow(number, whole)

    def _sendNow(self, number: int, whole: bytes) -> None:
        self._send(whole)
        self._sent[number] = len(whole)
        self._sentBytes += len(whole)

    def _take(self, number: int) -> None:
        self.bytes -= len(self._queued.pop(number))

    def _cancel(self, number: int) -> None:
        """Forget a request. One that was sent counts until it is answered."""
        self._outcomes.pop(number, None)
        if number in self._queued:
            self._take(number)
        elif number in self._sent:
            self._sendCancel(number)

    def answered(self, number: int) -> Deferred[Any] | None:
        """
        Note that a request is answered, and send queued ones.

        @return: its Deferred, to be fired; None if it was cancelled.
        @raise PeerViolation: there is no such request.
        """
        length = self._sent.pop(number, None)
        if length is None:
            raise PeerViolation("an answer without a request")
        self._sentBytes -= length
        if self._queued:
            self._sendQueued()
        return self._outcomes.pop(number, None)

    def end(self, error: Exception) -> None:
        """Fail all requests."""
        self._queued.clear()
        self._sent.clear()
        self.bytes = self._sentBytes = 0
        outcomes, self._outcomes = self._outcomes, {}
        for outcome in outcomes.values():
            if not outcome.called:
                outcome.errback(error)


class Caller(PendingRequests):
    """The calls of this end."""

    def __init__(
        self,
        send: Callable[[Buffer], None],
        sendCancel: Callable[[bytes], None],
        withdrawn: Callable[[], None],
    ) -> None:
        """@param withdrawn: called when a call was cancelled, so that fewer bytes may be queued."""
        super().__init__(send, lambda number: sendCancel(CANCEL.pack(number)), MOST_CALLS)
        self._withdrawn = withdrawn

    def _cancel(self, number: int) -> None:
        super()._cancel(number)
        self._withdrawn()

    def call(self, tag: int, data: Buffer) -> Deferred[bytes]:
        """Send a call, or queue it."""
        if len(data) > LONGEST - CALL.size:
            raise InvalidRequest(f"a call has at most {LONGEST - CALL.size} bytes, not {len(data)}")
        return self.request(lambda number: b"".join((CALL.pack(number, tag), data)))

    def received(self, answer: memoryview) -> None:
        """Process an answer. Raises L{PeerViolation} if it answers no call."""
        number, hasFailed = ANSWER.unpack_from(answer)
        outcome = self.answered(number)
        if outcome is None:
            return
        data = bytes(answer[ANSWER.size :])
        if hasFailed:
            outcome.errback(CallFailed(escaped(data.decode(errors="replace"))))
        else:
            outcome.callback(data)


class Answerer:
    """
    The calls of the peer.

    @ivar functions: the functions that answer them, by tag.
    @ivar most: limit of this end's calls; C{mostBytes} of their bytes: see L{MOST_CALL_BYTES}.
    @ivar reported: see L{REPORTED}.
    """

    def __init__(self, name: object, send: Callable[[Buffer, Done | None], None]) -> None:
        """
        @param name: the connection, for the log.
        @param send: sends an answer, and reports its arrival to a function, if one is given.
        """
        self.most, self.mostBytes, self.reported = MOST_CALLS, MOST_CALL_BYTES, REPORTED
        self.functions: dict[int, Function] = {}
        self._name, self._send = name, send
        self._waiting: list[tuple[int, int, bytes]] = []  # number, tag and data
        self._lengths: dict[int, int] = {}  # bytes of calls that are not answered
        self._running: dict[int, Deferred[Any]] = {}
        self._bytes = self._answerBytes = self._unreported = 0

    def asked(self, call: memoryview) -> None:
        """
        Process a call of the peer.

        @raise PeerViolation: the peer exceeds a limit, or has used this number.
        """
        number, tag = CALL.unpack_from(call)
        lengths = self._lengths
        self._bytes += len(call)
        if len(lengths) >= 2 * self.most or (lengths and self._bytes > 2 * self.mostBytes):
            raise PeerViolation(f"the peer has {len(lengths) + 1} unanswered calls of {self._bytes} bytes")
        if number in lengths:
            raise PeerViolation("two calls have the same number")
        lengths[number] = len(call)
        self._waiting.append((number, tag, bytes(call[CALL.size :])))
        self._runNext()

    def _runNext(self) -> None:
        while self._waiting and self._answerBytes < self.mostBytes:
            number, tag, data = self._waiting.pop(0)
            function = self.functions.get(tag)
            if function is None:
                self._answer(number, f"no function answers calls with tag {tag}".encode(), True)
                continue
            try:
                found = function(data)
            except Exception:
                self._failed(number, tag, Failure())
                continue
            if type(found) is bytes:  # the usual case, for which the questions below take 1 us
                self._succeeded(number, tag, found)
                continue
            if iscoroutine(found):
                found = Deferred.fromCoroutine(found)
            if isinstance(found, Deferred):
                self._running[number] = found
                found.addCallbacks(partial(self._succeeded, number, tag), partial(self._failed, number, tag))
            else:
                self._succeeded(number, tag, found)

    def _succeeded(self, number: int, tag: int, data: Any) -> None:
        """Send what a function has returned; if it is not a buffer, the call fails."""
        try:
            found = b"" if data is None else octets(data)
            if len(found) > LONGEST - ANSWER.size:
                raise InvalidRequest(f"an answer has at most {LONGEST - ANSWER.size} bytes, not {len(found)}")
        except InvalidRequest:
            self._failed(number, tag, Failure())
            return
        self._answer(number, found, False)

    def _failed(self, number: int, tag: int, failure: Failure) -> None:
        """Send the text of an exception."""
        if failure.check(CancelledError) is None:
            text = "{connection}: a function that answers calls with tag {tag} failed"
            named = {"connection": self._name, "tag": tag, "log_failure": failure}
            _rateLimited.emit(LogLevel.critical, tag, text, **named)
        text = f"{failure.type.__name__ if failure.type else ''}: {failure.getErrorMessage()}"
        self._answer(number, text[:LONGEST_TEXT].encode(errors="replace"), True)

    def _answer(self, number: int, data: Buffer, hasFailed: bool) -> None:
        self._running.pop(number, None)
        length = self._lengths.pop(number, None)
        if length is None:
            return  # the connection has ended
        self._bytes -= length
        whole = b"".join((ANSWER.pack(number, hasFailed), data))
        self._unreported += len(whole)
        done: Done | None = None
        if self._unreported >= self.reported:
            self._answerBytes += self._unreported
            done, self._unreported = partial(self._arrived, self._unreported), 0
        self._send(whole, done)

    def _arrived(self, length: int, error: Exception | None) -> None:
        """Note that answers of this many bytes have arrived or failed, and call the next functions."""
        self._answerBytes -= length
        self._runNext()

    def cancelled(self, number: int) -> None:
        """
        Cancel a call that the peer's program has cancelled; its answer is sent anyway. A function that was
        not called yet is not called.
        """
        running = self._running.get(number)
        if running is not None:
            self._cancel(running)
            return
        for waiting in self._waiting:
            if waiting[0] == number:
                self._waiting.remove(waiting)
                self._answer(number, b"", True)
                return

    def end(self) -> None:
        """Cancel all functions that run."""
        self._waiting.clear()
        self._lengths.clear()
        self._bytes = 0
        running, self._running = self._running, {}
        for each in running.values():
            self._cancel(each)

    def _cancel(self, running: Deferred[Any]) -> None:
        """Cancel the result of a function, whose canceller is the user's code."""
        with _log.failuresHandled("{connection}: a call could not be cancelled", connection=self._name):
            running.cancel()
