"""
Sends requests of Prometheus' remote write, in order, and stores on disk what cannot be sent.

Lost samples are counted by reason. A request that the receiver refuses for its content is dropped, as it
would be refused again (Prometheus Remote-Write 1.0, "Retries & Backoff").
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from twisted.web.iweb import IAgent

from txrdma.error import DeviceUnavailable
from txrdma.kit.backoff import BackOff
from txrdma.kit.httprequests import fetch, HTTPAnswer, SUCCESSES
from txrdma.kit.remotewrite import HEADERS
from txrdma.kit.spool import Spool, SpoolRecord
from txrdma.kit.strings import escaped

_log = Logger()

FIRST_PAUSE: Final = 5.0
"""Seconds until a request is repeated; doubled after each further failure."""

LONGEST_PAUSE: Final = 60.0
LONGEST_RETRY_AFTER: Final = 3600.0
"""Maximum seconds that a receiver can ask to wait."""

MOST_QUEUED: Final = 64 << 20
"""Maximum octets of requests in memory while the disk cannot be written; the oldest are dropped."""

MOST_ANSWER: Final = 4096
"""Maximum octets of the body of an answer; a longer one ends the connection, and the status counts."""

FULL: Final = "the spill was full"
REFUSED: Final = "the receiver refused them"
DAMAGED: Final = "their files were damaged"
CROWDED: Final = "they could not be stored in time"

_TOO_MANY_REQUESTS: Final = 429


class RemoteRequest(NamedTuple):
    """
    A request to be sent.

    @ivar content: compressed body; C{items}: number of samples in it.
    @ivar at: time of its oldest sample, in seconds since 1970.
    """

    content: bytes
    items: int
    at: int


class RemoteSender:
    """
    Sends requests to one receiver.

    @ivar sent: number of samples that the receiver has accepted.
    @ivar lost: number of samples that were lost, by reason; C{lostAt} is the time of the last loss.
    @ivar problem: reason why the receiver did not accept the last request; C{""} if it did.
    """

    def __init__(
        self,
        reactor: IReactorTime,
        agent: IAgent,
        url: str,
        headers: Mapping[str, str],
        timeoutSeconds: float,
        spool: Spool,
        inThread: Callable[..., Deferred[Any]],
    ) -> None:
        """
        @param headers: additional headers of all requests.
        @param inThread: calls functions in a thread, one after the other.
        """
        self.sent = 0
        self.lost: Counter[str] = Counter()
        self.lostAt = float("-inf")
        self.problem = ""
        self._reactor = reactor
        self._agent = agent
        self._url = url
        self._headers = {**headers, **HEADERS}
        self._timeoutSeconds = timeoutSeconds
        self._spool = spool
        self._inThread = inThread
        self._queue: deque[RemoteRequest] = deque()
        self._backOff: BackOff[str] = BackOff(FIRST_PAUSE, LONGEST_PAUSE)
        self._retryAfter = (0.0, 0.0)  # time of the last failure, and seconds that the receiver asked to wait

    @property
    def waiting(self) -> int:
        """Return the number of samples in requests that are not sent."""
        return self._spool.items + sum(request.items for request in self._queue)

    @property
    def spilledOctets(self) -> int:
        """Return the octets of requests on disk."""
        return self._spool.octets

    def oldestSeconds(self) -> float:
        """Return the age of the oldest request that is not sent, in seconds; 0 if there is none."""
        oldest = self._oldest()
        return 0.0 if oldest is None else max(0.0, self._reactor.seconds() - oldest.at)

    def add(self, requests: Iterable[RemoteRequest]) -> None:
        """Add requests to those that are sent by L{send}."""
        self._queue += requests

    def lose(self, why: str, samples: int) -> None:
        """Count samples that were lost, and log the first ones."""
        if not self.lost[why]:
            _log.warn("remote write: {samples} samples are lost: {why}", samples=samples, why=why)
        self.lost[why] += samples
        self.lostAt = self._reactor.seconds()

    async def send(self, seconds: float) -> bool:
        """
        Send requests, the oldest first, and store those that remain after this number of seconds on disk.

        @return: whether the receiver has accepted a request.
        @raise DeviceUnavailable: the disk cannot be read or written.
        """
        until, hasSent = self._reactor.seconds() + seconds, False
        if self.problem:  # then it may not answer for a while
            with suppress(DeviceUnavailable):
                await self.spill()
        while self._isDue() and (oldest := self._oldest()) is not None and await self._sendOne(oldest):
            hasSent = True
            if self._reactor.seconds() >= until:
                break
        await self.spill()
        return hasSent

    async def spill(self) -> None:
        """Move requests from memory to disk; if that fails, they remain in memory, up to a limit."""
        try:
            while self._queue:
                stored = self._spool.items
                try:
                    dropped = await self._inThread(self._spool.append, *self._queue[0])
                except DeviceUnavailable:
                    if self._spool.items < stored:  # dropped before the disk failed
                        self.lose(FULL, stored - self._spool.items)
                    raise
                self._queue.popleft()
                if dropped:
                    self.lose(FULL, sum(record.items for record in dropped))
        finally:
            while sum(len(request.content) for request in self._queue) > MOST_QUEUED:
                self.lose(CROWDED, self._queue.popleft().items)

    def close(self) -> None:
        self._spool.close()

    def _isDue(self) -> bool:
        now, (since, seconds) = self._reactor.seconds(), self._retryAfter
        isPausing = since <= now < since + seconds  # not if the clock was set back
        return not isPausing and self._backOff.isDue("", now)

    def _oldest(self) -> SpoolRecord | RemoteRequest | None:
        if self._spool.records:
            return self._spool.records[0]
        return self._queue[0] if self._queue else None

    async def _sendOne(self, oldest: SpoolRecord | RemoteRequest) -> bool:
        """Send the oldest request. Returns False if it has to be sent again."""
        if isinstance(oldest, RemoteRequest):
            if not await self._post(oldest.content, oldest.items):
                return False
            self._queue.popleft()
            return True
        content = await self._inThread(self._spool.read, oldest)
        if content is None:
            self.lose(DAMAGED, oldest.items)
        elif not await self._post(content, oldest.items):
            return False
        await self._inThread(self._spool.remove, oldest)
        return True

    async def _post(self, content: bytes, samples: int) -> bool:
        """Send a request. Returns whether the receiver has accepted or refused it."""
        try:
            answer = await fetch(
                *(self._agent, self._reactor, self._url, self._headers, self._timeoutSeconds, MOST_ANSWER),
                content,
            )
        except DeviceUnavailable as error:
            self._failed(str(error))
            return False
        isRefused = answer.code in range(400, 500) and answer.code != _TOO_MANY_REQUESTS
        if answer.code not in SUCCESSES and not isRefused:
            self._failed(f"it answers {answer.code} {_textOf(answer)}".rstrip(), _retryAfter(answer))
            return False
        if isRefused:
            _log.warn("remote write: {code} {why}", code=answer.code, why=_textOf(answer))
            self.lose(f"{REFUSED} ({answer.code})", samples)
        else:
            self.sent += samples
        if self.problem:
            _log.info("remote write: the receiver answers again")
        self.problem = ""
        self._backOff.answered("")
        return True

    def _failed(self, why: str, retryAfter: float = 0.0) -> None:
        if not self.problem:
            _log.warn("remote write failed, and is tried again: {why}", why=why)
        self.problem = why
        now = self._reactor.seconds()
        self._backOff.silent("", now)
        self._retryAfter = now, retryAfter


def _textOf(answer: HTTPAnswer) -> str:
    return escaped(" ".join(answer.body[:200].decode("utf-8", "replace").split()))


def _retryAfter(answer: HTTPAnswer) -> float:
    """Return the seconds that a receiver asks to wait; 0 if it does not, or gives a date."""
    (text, *_rest) = answer.headers.getRawHeaders("retry-after") or [""]
    isNumber = text.isascii() and text.isdecimal() and len(text) < 10
    return min(float(text), LONGEST_RETRY_AFTER) if isNumber else 0.0
