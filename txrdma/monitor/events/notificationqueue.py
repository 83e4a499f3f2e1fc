"""
Outlets: the queue of a channel's news, which outlasts both a receiver that is away and the process.

What waits is stored until the channel has taken it: a process that is killed in between sends it twice rather
than never.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, Union

from twisted.internet.defer import CancelledError, Deferred, maybeDeferred, TimeoutError
from twisted.internet.error import ConnectError, ConnectionClosed
from twisted.internet.interfaces import IReactorTime
from twisted.mail.smtp import SMTPError

from txrdma.error import DeviceUnavailable, RDMAError
from txrdma.monitor.diagnosis.findinglog import Key
from txrdma.monitor.events.alerts import News
from txrdma.monitor.events.channels import Channel
from txrdma.monitor.supervisor import SupervisedLoop

RETRY_SECONDS: Final = 15.0
"""Seconds until news are told again to a channel that could not take them; then twice that, and so on."""

LONGEST_RETRY_SECONDS: Final = 300.0

_MOST_DOUBLINGS: Final = 10

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
    @ivar loop: hands the news to the channel; its problem is why the channel did not take the last ones.
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
        self.dropped = 0
        self._reactor = reactor
        self._store = store
        self._took = took
        self._waiting: dict[int, News] = {}
        self._repeated: dict[int, News] = {}
        self._number = 0
        self._attempt: Deferred[None] | None = None
        self.loop = SupervisedLoop(
            *(reactor, channel.name, self._tell, self._untilNext),
            isReported=False,
            expected=(RDMAError, OSError, ConnectError, ConnectionClosed, TimeoutError, SMTPError),
        )
        self.loop.start(None)

    @property
    def isIdle(self) -> bool:
        """True while nothing waits, and nothing is being told."""
        return not self.loop.isRunning and not self._waiting

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
        if self._waiting and not self.loop.isDue:
            self.loop.runNow()

    def repeat(self, news: Sequence[News]) -> None:
        """Tell what was told before, if nothing else waits; it is not stored."""
        if news and self.isIdle:
            self._repeated = dict(enumerate(news))
            if not self.loop.isDue:
                self.loop.runNow()

    def _untilNext(self) -> float | None:
        """Time until what waits is told: at once, or after each failure later than after the one before."""
        failures = self.loop.failures
        if failures:
            return min(RETRY_SECONDS * (1 << min(failures - 1, _MOST_DOUBLINGS)), LONGEST_RETRY_SECONDS)
        return 0.0 if self._waiting else None

    async def _tell(self) -> bool:
        """Hand all that waits to the channel, and take it out of the store when the channel has it."""
        news = dict(self._waiting) or self._repeated
        if not news:
            return False
        self._attempt = maybeDeferred(self.channel.tell, list(news.values()))
        try:
            await self._attempt
        except CancelledError:
            raise DeviceUnavailable("it has not answered in time") from None
        finally:
            self._attempt = None
        self._took()
        self.dropped = 0
        if news is self._repeated:
            self._repeated = {}
        else:
            for number in news:
                self._waiting.pop(number, None)
            await self._store(forgotten(self.channel.queue, news))
        return True

    def moved(self, channel: Channel) -> None:
        """Tell by another channel from now on, which may be within reach: it is tried at once."""
        self.channel = channel
        self.loop.name = channel.name
        if not self.loop.isRunning:
            self.loop.cancel()  # so that it begins with the shortest pause
            if self._waiting:
                self.loop.runNow()

    def stop(self) -> Deferred[None]:
        """End telling; fires when the channel has taken what it was being told, or has had its time."""
        done = self.loop.stop()
        if self._attempt is not None:
            late = self._reactor.callLater(STOP_SECONDS, self._giveUp)

            def ended(_: None) -> None:
                if late.active():
                    late.cancel()

            done.addCallback(ended)
        return done

    def _giveUp(self) -> None:
        if self._attempt is not None:
            self._attempt.cancel()
