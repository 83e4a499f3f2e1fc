"""
Outlets: the queue of a channel's news, which outlasts both a receiver that is away and the process.

What waits is stored; it is taken out of the store before it is handed to the channel, and put back when the
channel has not taken it: a process that is killed in between tells it never rather than twice.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final, Union

from twisted.internet.defer import Deferred, maybeDeferred, TimeoutError
from twisted.internet.error import ConnectError, ConnectionClosed
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from twisted.mail.smtp import SMTPError
from twisted.python.failure import Failure

from txrdma.error import RDMAError
from txrdma.monitor.channels import Channel
from txrdma.monitor.ledger import Key
from txrdma.monitor.news import News

_log = Logger()

RETRY_SECONDS: Final = 15.0
"""Seconds until news are told again to a channel that could not take them; then twice that, and so on."""

LONGEST_RETRY_SECONDS: Final = 300.0

STOP_SECONDS: Final = 5.0
"""Seconds that a channel has at the end to take what it is being told."""

MOST_NEWS: Final = 1000
"""Most news that wait for a channel; older ones are dropped."""

QUEUE: Final = "telling"
"""Room of the memory: news that wait, by the queue's name and a number."""

Stored = tuple[str, str, Union[str, None]]


def restored(rows: Iterable[tuple[str, str]]) -> dict[str, dict[int, News]]:
    """News that a former process has left waiting, by the names of their queues, in order."""
    found: dict[str, dict[int, News]] = {}
    for name, value in sorted(rows, key=lambda row: _nameIn(row[0])[1]):
        queue, number = _nameIn(name)
        key, isRaised, finding = json.loads(value)
        found.setdefault(queue, {})[number] = News(Key(*key), isRaised, finding)
    return found


def forgotten(queue: str, numbers: Iterable[int]) -> list[Stored]:
    """Rows that take news out of the store."""
    return [(QUEUE, _nameOf(queue, number), None) for number in numbers]


def _nameOf(queue: str, number: int) -> str:
    return json.dumps([queue, number])


def _nameIn(name: str) -> tuple[str, int]:
    queue, number = json.loads(name)
    return str(queue), int(number)


class Outlet:
    """
    A channel, and the news that wait for it.

    @ivar channel: takes the news; another one may take its place.
    @ivar problem: reason for which the channel did not take the last news; C{""} when it has.
    @ivar dropped: number of news that were dropped since then, as too many waited.
    """

    def __init__(
        self,
        reactor: IReactorTime,
        channel: Channel,
        store: Callable[[Sequence[Stored]], Awaitable[None]],
        took: Callable[[], object],
    ) -> None:
        """
        @param store: stores rows; what keeps it from that is its own concern.
        @param took: called after each message that the channel has taken.
        """
        self.channel = channel
        self.problem = ""
        self.dropped = 0
        self._reactor = reactor
        self._store = store
        self._took = took
        self._waiting: dict[int, News] = {}
        self._number = 0
        self._wait = RETRY_SECONDS
        self._timer: IDelayedCall | None = None
        self._telling: Deferred[None] | None = None
        self._attempt: Deferred[None] | None = None
        self._isStarted = True

    @property
    def isIdle(self) -> bool:
        """True while nothing waits, and nothing is being told."""
        return self._telling is None and not self._waiting

    def restore(self, news: dict[int, News]) -> None:
        """Take what a former process has left waiting, before anything else."""
        self._waiting = {**news, **self._waiting}
        self._number = max([self._number, *news])

    def admit(self, news: Iterable[News]) -> list[Stored]:
        """Have news wait; returns the rows to be stored before L{send} is called."""
        rows: list[Stored] = []
        for one in news:
            self._number += 1
            self._waiting[self._number] = one
            rows.append(self._row(self._number, one))
        return rows + self._bound()

    def _row(self, number: int, news: News) -> Stored:
        value = json.dumps([news.key, news.isRaised, news.finding])
        return QUEUE, _nameOf(self.channel.queue, number), value

    def _bound(self) -> list[Stored]:
        oldest = list(self._waiting)[: max(0, len(self._waiting) - MOST_NEWS)]
        for number in oldest:
            del self._waiting[number]
        self.dropped += len(oldest)
        return forgotten(self.channel.queue, oldest)

    def send(self) -> None:
        """Tell what waits, unless the channel is being told, or is left alone for a while."""
        if self._isStarted and self._waiting and self._telling is None and self._timer is None:
            news, self._waiting = self._waiting, {}
            self._begin(news, isKept=True)

    def repeat(self, news: Sequence[News]) -> None:
        """Tell what was told before, if nothing else waits; it does not wait itself."""
        if self._isStarted and news and self.isIdle:
            self._begin(dict(enumerate(news)), isKept=False)

    def _begin(self, news: dict[int, News], isKept: bool) -> None:
        done = self._telling = Deferred()
        telling = Deferred.fromCoroutine(self._tell(news, isKept))
        telling.addErrback(lambda failure: _log.failure("while news were told", failure))
        telling.addCallback(self._ended, done)

    def _ended(self, _: None, done: Deferred[None]) -> None:
        self._telling = self._attempt = None
        done.callback(None)
        self.send()

    async def _tell(self, news: dict[int, News], isKept: bool) -> None:
        if isKept:
            await self._store(forgotten(self.channel.queue, news))
        attempt = self._attempt = maybeDeferred(self.channel.tell, list(news.values()))
        try:
            await attempt
        except Exception:
            failure = Failure()
            self._refused(failure)
            if isKept:
                self._waiting = {**news, **self._waiting}
                rows = [self._row(*each) for each in news.items()]
                await self._store(rows + self._bound())
        else:
            self._wait = RETRY_SECONDS
            self.problem, self.dropped = "", 0
            self._took()

    def _refused(self, failure: Failure) -> None:
        """Note why the channel has taken nothing; leave it alone, each time for longer."""
        why = failure.getErrorMessage().rstrip(".") or type(failure.value).__name__
        if not self.problem:
            _log.warn("{channel} takes no news: {why}", channel=self.channel.name, why=why)
            if not failure.check(RDMAError, OSError, ConnectError, ConnectionClosed, TimeoutError, SMTPError):
                _log.debug("{trace}", trace=failure.getTraceback())
        self.problem = why
        if self._isStarted:
            self._timer = self._reactor.callLater(self._wait, self._again)
            self._wait = min(2 * self._wait, LONGEST_RETRY_SECONDS)

    def _again(self) -> None:
        self._timer = None
        self.send()

    def moved(self, channel: Channel) -> None:
        """Tell by another channel from now on, which may be within reach: it is tried soon."""
        self.channel = channel
        self._wait = RETRY_SECONDS
        if self._timer is not None:
            self._timer.cancel()
            self._again()

    def stop(self) -> Deferred[None]:
        """End telling; fires when the channel has taken what it was being told, or has had its time."""
        self._isStarted = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        return Deferred.fromCoroutine(self._end())

    async def _end(self) -> None:
        telling = self._telling
        if telling is None:
            return
        done: Deferred[Any] = Deferred()
        telling.addBoth(done.callback)
        late = self._reactor.callLater(STOP_SECONDS, self._giveUp)
        await done
        if late.active():
            late.cancel()

    def _giveUp(self) -> None:
        if self._attempt is not None:
            self._attempt.cancel()
