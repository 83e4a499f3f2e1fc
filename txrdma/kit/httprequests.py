"""HTTP requests with limits: a server can neither delay the caller for ever nor fill its memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple, NoReturn

from zope.interface import implementer

from twisted.internet.defer import CancelledError, Deferred, succeed
from twisted.internet.error import ConnectError, ConnectionClosed
from twisted.internet.interfaces import IConsumer, IReactorTime, IStreamClientEndpoint
from twisted.internet.protocol import connectionDone, Protocol
from twisted.python.failure import Failure
from twisted.web.client import (
    Agent,
    HTTPConnectionPool,
    RequestTransmissionFailed,
    ResponseDone,
    ResponseFailed,
)
from twisted.web.http import PotentialDataLoss
from twisted.web.http_headers import Headers
from twisted.web.iweb import IAgent, IBodyProducer

from txrdma.error import DeviceUnavailable
from txrdma.kit.logs import errorText

SUCCESSES: Final = range(200, 300)
"""Status codes of requests that have succeeded."""

MOST_RECEIVED: Final = 16 << 20
"""Maximum octets on a connection, with headers, whose number Twisted does not limit."""

_MOST_TEXT: Final = 500
"""Maximum characters of the text of an error, which may contain what a server has sent."""

_AGENT: Final = {"User-Agent": "txrdma"}
_FAILURES: Final = (
    *(OSError, ConnectError, ConnectionClosed, ResponseFailed, RequestTransmissionFailed),
    ValueError,
)
"""Errors of names, connections, TLS and malformed answers; invalid URLs and names are a C{ValueError}."""


@implementer(IStreamClientEndpoint)
class _QuietEndpoint:
    """
    An endpoint that does not log the start and the end of each connection's factory, and closes connections
    on which more than L{MOST_RECEIVED} arrives.
    """

    def __init__(self, endpoint: IStreamClientEndpoint) -> None:
        self._endpoint = endpoint

    def connect(self, protocolFactory: Any) -> Deferred[Any]:
        protocolFactory.noisy = False
        return self._endpoint.connect(protocolFactory).addCallback(_limited)


def _limited(protocol: Any) -> Any:
    receive, left = protocol.dataReceived, MOST_RECEIVED

    def received(data: bytes) -> None:
        nonlocal left
        left -= len(data)
        if left >= 0:
            receive(data)
        else:
            protocol.transport.loseConnection()

    protocol.dataReceived = received
    return protocol


class _QuietPool(HTTPConnectionPool):
    """A pool of connections that are not logged."""

    def getConnection(self, key: object, endpoint: IStreamClientEndpoint) -> Any:
        return super().getConnection(key, _QuietEndpoint(endpoint))


def quietAgent(reactor: Any, connectSeconds: float | None = None) -> Agent:
    """
    Return an agent for L{fetch} that logs no connections.

    @param connectSeconds: time limit for connecting; None for that of Twisted.
    """
    pool = _QuietPool(reactor, persistent=False)  # type: ignore[no-untyped-call]  # of Twisted's
    return Agent(reactor, connectTimeout=connectSeconds, pool=pool)


class HTTPAnswer(NamedTuple):
    """
    The answer of a server.

    @ivar code: status code.
    @ivar body: the body, or its beginning.
    @ivar isWhole: whether the body ended before the limit and before the connection was lost.
    """

    code: int
    headers: Headers
    body: bytes
    isWhole: bool


def fetch(
    agent: IAgent,
    clock: IReactorTime,
    url: str,
    headers: Mapping[str, str],
    seconds: float,
    mostOctets: int,
    body: bytes | None = None,
) -> Deferred[HTTPAnswer]:
    """
    Send a request: GET, or POST of a body. Cancelling the Deferred closes the connection.

    @param seconds: time limit, from connecting to the end of the answer.
    @param mostOctets: maximum length of the answer's body; a longer one closes the connection.
    @return: fires with any answer that has a status; fails with L{DeviceUnavailable} if there is none in
        time.
    """
    sent = Headers({name: [value] for name, value in {**_AGENT, **headers}.items()})
    fetching = Deferred.fromCoroutine(_fetch(agent, url, sent, mostOctets, body))
    fetching.addTimeout(seconds, clock, late)
    return Deferred.fromCoroutine(_translated(fetching))


def late(result: object, seconds: float) -> NoReturn:
    """Raise L{DeviceUnavailable} after a time limit: C{onTimeoutCancel} of C{Deferred.addTimeout}."""
    raise DeviceUnavailable(f"no response in {seconds:g} s")


async def _translated(fetching: Deferred[HTTPAnswer]) -> HTTPAnswer:
    try:
        return await fetching
    except _FAILURES as error:
        causes = getattr(error, "reasons", None) or [Failure(error)]  # what a response's failure wraps
        if causes[-1].check(CancelledError):
            raise CancelledError from error
        raise DeviceUnavailable(errorText(causes[-1].value)[:_MOST_TEXT]) from error


async def _fetch(agent: IAgent, url: str, headers: Headers, most: int, body: bytes | None) -> HTTPAnswer:
    if body is None:
        response: Any = await agent.request(b"GET", url.encode(), headers)
    else:
        response = await agent.request(b"POST", url.encode(), headers, _Body(body))
    ended: Deferred[None] = Deferred(lambda _: reader.giveUp())
    reader = _BodyReader(ended, most)
    response.deliverBody(reader)
    await ended
    return HTTPAnswer(response.code, response.headers, bytes(reader.body), reader.isWhole)


@implementer(IBodyProducer)
class _Body:
    """Body of a request, which is written at once: the transport buffers it."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self.length: int = len(content)

    def startProducing(self, consumer: IConsumer) -> Deferred[None]:
        consumer.write(self._content)
        return succeed(None)

    def pauseProducing(self) -> None:
        """Do nothing: all is written."""

    def resumeProducing(self) -> None:
        """Do nothing: all is written."""

    def stopProducing(self) -> None:
        """Do nothing: all is written."""


class _BodyReader(Protocol):
    """Collects the body of an answer up to its limit."""

    def __init__(self, ended: Deferred[None], most: int) -> None:
        self.body = bytearray()
        self.isWhole = False
        self._isLong = False
        self._ended = ended
        self._most = most

    def dataReceived(self, data: bytes) -> None:
        self.body += data[: self._most - len(self.body) + 1]
        if len(self.body) > self._most:
            del self.body[self._most :]
            self._isLong = True  # the rest may have been received with it, and end the body normally
            self.giveUp()

    def giveUp(self) -> None:
        transport: Any = self.transport
        if transport is not None:
            transport.loseConnection()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """Handle the end of the body, whatever the reason: the status has been received before."""
        self.isWhole = not self._isLong and reason.check(ResponseDone, PotentialDataLoss) is not None
        if not self._ended.called:
            self._ended.callback(None)
