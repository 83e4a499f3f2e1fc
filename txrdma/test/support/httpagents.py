"""
An HTTP agent for tests without a network: it records requests, and returns answers prepared by a test.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Union

from zope.interface import implementer

from twisted.internet.defer import CancelledError, Deferred, fail, succeed
from twisted.internet.error import ConnectionLost
from twisted.internet.testing import StringTransport
from twisted.python.failure import Failure
from twisted.web.client import ResponseDone, ResponseNeverReceived
from twisted.web.http_headers import Headers
from twisted.web.iweb import IAgent


class Prepared(NamedTuple):
    """
    A prepared answer.

    @ivar ending: exception with which the connection ends; None if it does not end by itself.
    """

    code: int
    body: bytes = b""
    headers: Mapping[str, str] = {}
    ending: Exception | None = ResponseDone()


class Requested(NamedTuple):
    """A request that was received."""

    method: bytes
    url: str
    headers: Headers
    body: bytes


Answer = Union[Prepared, Exception, None]
"""An answer, an error of the connection, or None for no answer."""


class _Response:
    def __init__(self, prepared: Prepared) -> None:
        self.code = prepared.code
        self.headers = Headers({name: [value] for name, value in prepared.headers.items()})
        self._prepared = prepared
        self.transport = StringTransport()

    def deliverBody(self, protocol: Any) -> None:
        protocol.makeConnection(self.transport)
        protocol.dataReceived(self._prepared.body)
        ending = ConnectionLost() if self.transport.disconnecting else self._prepared.ending
        if ending is not None:
            protocol.connectionLost(Failure(ending))


@implementer(IAgent)
class PreparedAgent:
    """
    An agent that answers from a queue, then with a default.

    @ivar requests: all requests so far; C{cancelled} is the number of those that were cancelled.
    @ivar answers: answers to the next requests; C{usual} answers all others.
    """

    def __init__(self, usual: Answer = None) -> None:
        self.requests: list[Requested] = []
        self.answers: deque[Answer] = deque()
        self.usual: Answer | Callable[[Requested], Answer] = usual
        self.cancelled = 0

    def request(
        self, method: bytes, uri: bytes, headers: Any = None, bodyProducer: Any = None
    ) -> Deferred[Any]:
        """Record a request, and answer it."""
        body: list[bytes] = []
        if bodyProducer is not None:
            transport = StringTransport()
            bodyProducer.startProducing(transport)
            body.append(transport.value())
            assert len(body[0]) == bodyProducer.length
        requested = Requested(method, uri.decode(), headers or Headers(), b"".join(body))
        self.requests.append(requested)
        answer: Any = self.answers.popleft() if self.answers else self.usual
        if callable(answer):
            answer = answer(requested)
        if answer is None:
            return Deferred(self._cancel)
        return fail(answer) if isinstance(answer, Exception) else succeed(_Response(answer))

    def _cancel(self, requesting: Deferred[Any]) -> None:
        """Fail as Twisted's agent does when it waits for a response."""
        self.cancelled += 1
        requesting.errback(ResponseNeverReceived([Failure(CancelledError())]))
