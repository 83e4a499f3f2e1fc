"""HTTP requests with bounds of time and size."""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.error import ConnectionLost, ConnectionRefusedError
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.logger import capturedLogs
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase
from twisted.web.client import ResponseDone, ResponseNeverReceived
from twisted.web.http import PotentialDataLoss
from twisted.web.http_headers import Headers

from txrdma.error import DeviceUnavailable
from txrdma.kit.httprequests import _BodyReader, fetch, HTTPAnswer, MOST_RECEIVED, quietAgent
from txrdma.test.support.addressreactor import AddressReactor
from txrdma.test.support.httpagents import Answer, Prepared, PreparedAgent

HEADERS = {"X-One": "1"}


class AgentTests(SynchronousTestCase):
    def test_quiet(self) -> None:
        """Connections are not logged: programs that run for years send a request every few seconds."""
        for url in ("http://127.0.0.1/a", "http://127.0.0.1:8080/a"):
            clock = AddressReactor()
            with capturedLogs() as logs:
                fetching = fetch(quietAgent(clock, 3.0), clock, url, HEADERS, 5.0, 10)
                (_host, _port, factory, timeout, _address) = clock.tcpClients[0]
                factory.doStart()
                protocol: Any = factory.buildProtocol(None)
                transport = StringTransport()
                protocol.makeConnection(transport)
                protocol.dataReceived(b"HTTP/1.1 204 OK\r\n\r\n")
                factory.doStop()
            self.assertIn(b"GET /a HTTP/1.1", transport.value())
            self.assertEqual((self.successResultOf(fetching).code, timeout, logs), (204, 3.0, []))

    def test_longHead(self) -> None:
        """A server that sends headers without end is disconnected, as one that sends too many octets."""
        clock = AddressReactor()
        fetch(quietAgent(clock), clock, "http://127.0.0.1/a", HEADERS, 5.0, 10).addErrback(lambda _: None)
        protocol: Any = clock.tcpClients[0][2].buildProtocol(None)
        transport = StringTransport()
        protocol.makeConnection(transport)
        protocol.dataReceived(b"HTTP/1.1 200 OK\r\n")
        header = b"a: " + bytes(10_000).replace(b"\0", b"x") + b"\r\n"
        for _ in range(MOST_RECEIVED // len(header)):
            protocol.dataReceived(header)
        self.assertFalse(transport.disconnecting)
        protocol.dataReceived(header)
        self.assertTrue(transport.disconnecting)


class FetchTests(SynchronousTestCase):
    """Answers, and servers that do not answer."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.agent = PreparedAgent()

    def fetched(self, answer: Answer, body: bytes | None = None) -> Deferred[HTTPAnswer]:
        self.agent.usual = answer
        return fetch(self.agent, self.clock, "http://a/b", HEADERS, 5.0, 10, body)

    def test_answer(self) -> None:
        """A request has its method, headers and body; any status is an answer."""
        for body, method in ((None, b"GET"), (b"hello", b"POST")):
            answer = self.successResultOf(self.fetched(Prepared(503, b"later", {"Retry-After": "9"}), body))
            self.assertEqual((answer.code, answer.body, answer.isWhole), (503, b"later", True))
            self.assertEqual(answer.headers.getRawHeaders("retry-after"), ["9"])
            sent = self.agent.requests[-1]
            self.assertEqual((sent.method, sent.url, sent.body), (method, "http://a/b", body or b""))
            self.assertEqual(sent.headers, Headers({"X-One": ["1"], "User-Agent": ["txrdma"]}))
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_long(self) -> None:
        """A body beyond the limit closes the connection; one of exactly that length does not."""
        for body, isWhole in ((bytes(10), True), (bytes(11), False)):
            answer = self.successResultOf(self.fetched(Prepared(200, body)))
            self.assertEqual((answer.body, answer.isWhole), (bytes(10), isWhole))

    def test_longAtOnce(self) -> None:
        """A body beyond the limit is incomplete, even if its end was received with it."""
        for ending in (ResponseDone(), PotentialDataLoss()):
            reader = _BodyReader(Deferred(), 10)
            reader.makeConnection(StringTransport())
            reader.dataReceived(bytes(20))
            reader.connectionLost(Failure(ending))
            self.assertEqual((reader.body, reader.isWhole), (bytes(10), False))

    def test_broken(self) -> None:
        """A body that ends because the connection is lost is incomplete."""
        answer = self.successResultOf(self.fetched(Prepared(200, b"beg", ending=ConnectionLost())))
        self.assertEqual((answer.body, answer.isWhole), (b"beg", False))

    def test_errors(self) -> None:
        """Errors of the connection have one type, and contain the text of their cause."""
        wrapped = ResponseNeverReceived([Failure(ConnectionLost("reset"))])
        nameless = ResponseNeverReceived([Failure(OSError())])
        for error, text in (
            *((ConnectionRefusedError(), "refused"), (wrapped, "reset"), (nameless, "OSError")),
            (ValueError("invalid hostname: a_b"), "invalid hostname: a_b"),
        ):
            failure = self.failureResultOf(self.fetched(error), DeviceUnavailable)
            self.assertIn(text, failure.getErrorMessage())
        failure = self.failureResultOf(self.fetched(ValueError("x" * 10_000)), DeviceUnavailable)
        self.assertLess(len(failure.getErrorMessage()), 1000)

    def test_late(self) -> None:
        """A server that does not complete its answer in time is unavailable, and the request is cancelled."""
        for answer in (None, Prepared(200, b"beg", ending=None)):
            fetching = self.fetched(answer)
            self.clock.advance(4.9)
            self.assertNoResult(fetching)
            self.clock.advance(0.2)
            failure = self.failureResultOf(fetching, DeviceUnavailable)
            self.assertEqual(failure.getErrorMessage(), "no response in 5 s")
        self.assertEqual((self.agent.cancelled, self.clock.getDelayedCalls()), (1, []))

    def test_cancel(self) -> None:
        fetching = self.fetched(None)
        fetching.cancel()
        self.failureResultOf(fetching, CancelledError)
        self.assertEqual((self.agent.cancelled, self.clock.getDelayedCalls()), (1, []))
