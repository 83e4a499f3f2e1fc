"""Calls of functions at the peer, and their answers."""

from __future__ import annotations

from array import array
from typing import Any
from unittest.mock import Mock

from twisted.internet.defer import CancelledError, Deferred, TimeoutError

from txrdma.btl import requests
from txrdma.btl.core.assembly import LONGEST
from txrdma.btl.errors import CallFailed, MessageFailed
from txrdma.btl.requests import ANSWER, answers, CALL
from txrdma.btl.transport import _ANSWER, _CALL, LARGEST_TAG
from txrdma.error import InvalidRequest
from txrdma.test.support.btl.hosts import HostsCase, TAG, TagRecorder

DOUBLE, LATER, BROKEN, COROUTINE = 1, 2, 3, 4


class Worker(TagRecorder):
    """
    A protocol with functions.

    @ivar waiting: Deferreds of its function that answers later.
    """

    def __init__(self) -> None:
        super().__init__()
        self.waiting: list[Deferred[bytes]] = []
        self.seen: list[bytes] = []

    @answers(DOUBLE)
    def double(self, data: bytes) -> object:
        """Answer immediately, with an array."""
        self.seen.append(data)
        return array("d", [2 * each for each in array("d", data)])

    @answers(LATER)
    def later(self, data: bytes) -> Deferred[bytes]:
        """Answer when a test fires the Deferred."""
        self.seen.append(data)
        self.waiting.append(Deferred())
        return self.waiting[-1]

    @answers(BROKEN)
    def broken(self, data: bytes) -> object:
        """Raise an exception, or return no buffer."""
        if data:
            raise ZeroDivisionError(data.decode())
        return "text"

    @answers(COROUTINE)
    async def coroutine(self, data: bytes) -> bytes | None:
        """Answer with the result of another function."""
        return await self.later(data) if data else None


class Raising:
    """A descriptor that raises, as a property of a metaclass may, and counts its calls."""

    calls = 0

    def __get__(self, instance: object, owner: type) -> None:
        self.calls += 1
        raise ZeroDivisionError("simulated")


class CallsCase(HostsCase):
    """A client and a worker."""

    def setUp(self) -> None:
        super().setUp()
        self.client, self.server = self.workers()

    def workers(self) -> tuple[Worker, Worker]:
        """Return two connected workers."""
        ends = Worker(), Worker()
        self.connect(*ends)
        return ends

    def call(self, *words: Any, **named: Any) -> Deferred[bytes]:
        """Call a function of the server."""
        answer: Deferred[bytes] = self.client.transport.call(*words, **named)
        return answer

    def assertNoCalls(self) -> None:
        """Assert that neither end has stored anything about a call when all reports have arrived."""
        self.pause(0.1)
        for end in (self.client, self.server):
            caller, answerer = end.transport._caller, end.transport._answerer
            self.assertEqual((caller._queued, caller._sent, caller._outcomes), ({}, {}, {}))
            self.assertEqual((caller.bytes, caller._sentBytes), (0, 0))
            self.assertEqual((answerer._lengths, answerer._running, list(answerer._waiting)), ({}, {}, []))
            self.assertEqual((answerer._bytes, answerer._answerBytes), (0, 0))


class CallTests(CallsCase):
    def test_arrays(self) -> None:
        """A function gets the bytes of an array and answers with an array, short or long."""
        for count in (0, 5, 100_000):
            items = array("d", range(count))
            answer = self.outcome(self.call(DOUBLE, items))
            self.assertEqual(array("d", answer), array("d", [2 * each for each in items]))
        self.assertNoCalls()

    def test_raisingAttribute(self) -> None:
        """An attribute of a class that raises costs no connection; it is read once for all connections."""
        raising = Raising()
        kind = type("Odd", (Worker,), {"attribute": raising})
        for _ in range(2):
            ends = kind(), kind()
            self.connect(*ends)
            data = array("d", [1.5]).tobytes()
            self.assertEqual(self.outcome(ends[0].transport.call(DOUBLE, data)), array("d", [3.0]).tobytes())
        self.assertEqual(raising.calls, 1)
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)

    def test_bothWays(self) -> None:
        """Answers in any order arrive at their calls, and both ends can call each other."""
        calls = [self.call(LATER, b"%d" % number) for number in range(5)]
        other = self.server.transport.call(DOUBLE, array("d", [1.5]))
        self.assertEqual(array("d", self.outcome(other)), array("d", [3.0]))
        self.wait(lambda: len(self.server.waiting) == 5)
        self.assertEqual(self.server.seen, [b"%d" % number for number in range(5)])
        for number in (3, 1, 0, 4, 2):
            self.server.waiting[number].callback(b"answer %d" % number)
            self.assertEqual(self.outcome(calls[number]), b"answer %d" % number)
        self.assertNoCalls()

    def test_coroutine(self) -> None:
        """A function may be a coroutine, and None is an answer without bytes."""
        self.assertEqual(self.outcome(self.call(COROUTINE)), b"")
        answer = self.call(COROUTINE, b"x")
        self.wait(lambda: self.server.waiting)
        self.server.waiting[0].callback(b"y")
        self.assertEqual(self.outcome(answer), b"y")

    def test_set(self) -> None:
        """Functions are set and removed at any time."""
        self.server.transport.answer(9, bytes.upper)
        self.assertEqual(self.outcome(self.call(9, b"a")), b"A")
        self.server.transport.answer(9, None)
        answer = self.call(9, b"a")
        self.wait(lambda: answer.called)
        self.assertIn("tag 9", str(self.failureResultOf(answer, CallFailed).value))

    def test_reported(self) -> None:
        """Not every short answer is acknowledged: one acknowledgement covers several answers."""
        answerer = self.server.transport._answerer
        answerer.reported, answerer.mostBytes = 100, 200
        self.server.transport.answer(9, lambda data: bytes(40))
        for _each in range(20):
            self.assertEqual(self.outcome(self.call(9)), bytes(40))
        self.assertNoCalls()
        self.assertTrue(answerer._unreported < 100)

    def test_exception(self) -> None:
        """An exception of a function fails its caller, is logged, and does not end the connection."""
        for data, text, logged in (
            (b"why", "ZeroDivisionError: why", ZeroDivisionError),
            (b"", "InvalidRequest: a buffer cannot be used", InvalidRequest),
        ):
            self.patch(requests._rateLimited, "_entries", {})
            answer = self.call(BROKEN, data)
            self.wait(lambda answer=answer: answer.called)  # type: ignore[misc]  # a Deferred
            self.assertIn(text, str(self.failureResultOf(answer, CallFailed).value))
            self.assertEqual(len(self.flushLoggedErrors(logged)), 1)
        self.outcome(self.call(DOUBLE))
        self.assertNoCalls()

    def test_controlCharacters(self) -> None:
        """The text of an exception at the peer has no control characters in the error of the caller."""
        self.patch(requests._rateLimited, "_entries", {})
        answer = self.call(BROKEN, b"\x1b[2J\n")
        self.wait(lambda: answer.called)
        error = self.failureResultOf(answer, CallFailed).value
        self.assertEqual(str(error), r"ZeroDivisionError: \x1b[2J\x0a")
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)

    def test_timeout(self) -> None:
        """A call without an answer in time fails, and the function's Deferred is cancelled."""
        answer = self.call(LATER, timeout=0.5)
        self.wait(lambda: answer.called)
        self.failureResultOf(answer, TimeoutError)
        self.wait(lambda: self.server.waiting[0].called)
        self.assertNoCalls()
        self.assertEqual(self.outcome(self.call(DOUBLE, timeout=0.5)), b"")
        self.pause(1.0)

    def test_timeoutWaiting(self) -> None:
        """A call whose timeout expires while it waits for earlier ones is never sent."""
        self.client.transport._caller.most = 1
        first, late = self.call(LATER), self.call(LATER, b"late", timeout=0.5)
        self.wait(lambda: late.called)
        self.failureResultOf(late, TimeoutError)
        self.server.waiting[0].callback(b"answer")
        self.assertEqual(self.outcome(first), b"answer")
        self.assertNoCalls()
        self.assertEqual(self.server.seen, [b""])

    def test_cancelledSoon(self) -> None:
        """A call that is cancelled immediately is withdrawn, or its function cancelled, also when queued."""
        for length in (0, 20_000):
            for _ in range(10):
                self.client.transport.post(TAG, bytes(900))
            call = self.call(LATER, bytes(length))
            call.cancel()
            self.failureResultOf(call, CancelledError)
            self.wait(lambda: len(self.server.tagged) == 10)
            self.pause(0.1)
            self.assertTrue(all(each.called for each in self.server.waiting))
            self.assertNoCalls()
            self.server.tagged.clear()

    def test_cancelledWaiting(self) -> None:
        """The function of a call that is cancelled while long answers are in flight is not called."""
        answerer = self.server.transport._answerer
        answerer.mostBytes = 250_000
        self.server.transport.answer(9, lambda data: bytes(200_000))
        calls = [self.call(9) for _ in range(3)]
        last = self.call(LATER)
        self.wait(lambda: answerer._waiting)
        last.cancel()
        self.failureResultOf(last, CancelledError)
        self.assertEqual([len(self.outcome(each)) for each in calls], [200_000] * 3)
        self.assertNoCalls()
        self.assertEqual(self.server.waiting, [])

    def test_limit(self) -> None:
        """Calls beyond the limit wait; one that is cancelled while it waits is never sent."""
        self.client.transport._caller.most = 3
        calls = [self.call(LATER, b"%d" % number) for number in range(6)]
        self.wait(lambda: len(self.server.waiting) == 3)
        calls[4].cancel()
        self.failureResultOf(calls[4], CancelledError)
        self.pause(0.1)
        self.assertEqual(len(self.server.waiting), 3)
        for number, call in enumerate((0, 1, 2, 3, 5)):
            self.wait(lambda number=number: len(self.server.waiting) > number)  # type: ignore[misc]  # an int
            self.server.waiting[number].callback(b"answer")
            self.assertEqual(self.outcome(calls[call]), b"answer")
        self.assertEqual(self.server.seen, [b"0", b"1", b"2", b"3", b"5"])
        self.assertNoCalls()

    def test_bytes(self) -> None:
        """Calls with many bytes wait for each other, and so do functions whose answers are in flight."""
        self.client.transport._caller.mostBytes = self.server.transport._answerer.mostBytes = 50_000
        self.server.transport.answer(9, lambda data: bytes(200_000))
        calls = [self.call(9, bytes(40_000)) for _ in range(5)]
        self.assertEqual(len(self.client.transport._caller._sent), 1)
        self.assertEqual([len(self.outcome(each)) for each in calls], [200_000] * 5)
        self.assertNoCalls()

    def test_badCalls(self) -> None:
        transport = self.client.transport
        self.assertRaises(InvalidRequest, transport.call, -1, b"")
        self.assertRaises(InvalidRequest, transport.call, LARGEST_TAG + 1, b"")
        self.assertRaises(InvalidRequest, transport.answer, -1, bytes.upper)
        self.assertRaises(InvalidRequest, transport.call, 1, memoryview(bytes(8))[::2])
        self.assertRaises(InvalidRequest, transport.call, 1, bytes(LONGEST))

    def test_badCanceller(self) -> None:
        """A canceller that raises is logged, and affects only its own call."""
        made: list[Deferred[bytes]] = []

        def function(data: bytes) -> Deferred[bytes]:
            made.append(Deferred(Mock(side_effect=ZeroDivisionError("canceller"))))
            return made[-1]

        self.server.transport.answer(TAG, function)
        self.call(TAG, timeout=0.5).addErrback(lambda failure: failure.trap(TimeoutError))
        self.wait(lambda: made)
        self.pause(0.7)
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)
        made[0].callback(b"")
        self.assertEqual(self.outcome(self.call(DOUBLE)), b"")
        last = [self.call(TAG), self.call(TAG), self.call(LATER)]
        self.wait(lambda: self.server.waiting)
        self.client.transport.loseConnection()
        self.wait(lambda: self.client.lost and self.server.lost)
        for each in last:
            self.failureResultOf(each, MessageFailed)
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 2)
        self.assertTrue(self.server.waiting[0].called)
        self.assertNoCalls()

    def test_end(self) -> None:
        """Calls fail when the connection ends, at any time, and running functions are cancelled."""
        self.client.transport._caller.most = 2
        calls = [self.call(LATER) for _ in range(4)]
        self.wait(lambda: len(self.server.waiting) == 2)
        self.client.transport.loseConnection()
        self.wait(lambda: self.client.lost and self.server.lost)
        for each in (*calls, self.call(LATER)):
            self.failureResultOf(each, MessageFailed)
        self.assertTrue(all(each.called for each in self.server.waiting))
        self.assertNoCalls()
        self.assertNothingLeft()


class LiarTests(CallsCase):
    """Peers that violate the rules of calls lose only their own connection."""

    def test_tooMany(self) -> None:
        """A peer may not have too many calls that are not answered."""
        answerer = self.server.transport._answerer
        self.assertEqual(answerer.most, requests.MOST_CALLS)
        answerer.most = 10
        calls = [(_CALL, CALL.pack(number, LATER)) for number in range(21)]
        self.assertRefused(*calls, ends=(self.client, self.server))

    def test_tooLong(self) -> None:
        """A peer may not have too many bytes of calls that are not answered."""
        answerer = self.server.transport._answerer
        self.assertEqual(answerer.mostBytes, requests.MOST_CALL_BYTES)
        answerer.mostBytes = 10_000
        calls = [(_CALL, CALL.pack(number, LATER) + bytes(7000)) for number in range(3)]
        self.assertRefused(*calls, ends=(self.client, self.server))

    def test_numbers(self) -> None:
        """A peer may neither reuse the number of a pending call nor answer a call that was not sent."""
        self.assertRefused(*[(_CALL, CALL.pack(7, LATER))] * 2, ends=self.workers())
        self.assertRefused((_ANSWER, ANSWER.pack(7, False)), ends=self.workers())
        self.assertRefused((_ANSWER, b"?"), ends=self.workers())
        self.assertRefused((_CALL, b"?"), ends=self.workers())
