"""
Teller of findings: news go to all channels, once, and again to a channel that could not take them.

That a finding was told is stored before it is told: a process that is killed in between tells it never
rather than twice.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Final, Protocol, Union

from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from txrdma.error import RDMAError
from txrdma.fabric.health import Finding
from txrdma.monitor.channels import Channel
from txrdma.monitor.ledger import Cleared, Key, LedgerEvent
from txrdma.monitor.news import News, Telling, TellingRules

_log = Logger()

RETRY_SECONDS: Final = 60.0
"""Seconds until news are told again to a channel that could not take them."""

_MOST_NEWS: Final = 1000
"""Most news that wait for a channel; older ones are dropped."""


_ROOM: Final = "told"
"""Room of the memory: findings that were told and not cleared."""


class Memory(Protocol):
    """Memory that outlasts a process."""

    def rememberedIn(self, room: str) -> Deferred[list[tuple[str, str]]]:
        """Fires with names and values of all that is remembered in a room."""

    def rememberNow(self, several: Sequence[tuple[str, str, Union[str, None]]]) -> Deferred[None]:
        """Remember values by their rooms and names, and forget where there is none; fires when it is done."""


class _Outlet:
    """A channel, and the news that wait for it."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.waiting: list[News] = []
        self.isTelling = False
        self.problem = ""
        self.timer: IDelayedCall | None = None


class Teller:
    """
    Teller of a ledger's events to channels, from L{start} to L{stop}.

    @ivar sent: number of messages that channels have taken.
    """

    def __init__(
        self,
        reactor: IReactorTime,
        rules: TellingRules,
        channels: Sequence[Channel],
        memory: Memory | None = None,
    ) -> None:
        """@param memory: memory of what was told; without one a new process tells everything again."""
        self.sent = 0
        self._reactor = reactor
        self._telling = Telling(rules, reactor.seconds())
        self._outlets = [_Outlet(channel) for channel in channels]
        self._memory = memory
        self._timer: IDelayedCall | None = None
        self._repeats: list[IDelayedCall] = []
        self._isStarted = self._isKnown = False

    def expect(self, keys: Iterable[Key]) -> None:
        """Take findings of a former process that are held for there: see L{Telling.expect}."""
        self._telling.expect(keys)

    def start(self) -> None:
        """Read what was told before, and tell from then on."""
        self._isStarted = True
        for outlet in self._outlets:
            self._repeatIn(outlet)
        if self._memory is None:
            self._known([])
        else:
            self._memory.rememberedIn(_ROOM).addCallbacks(self._known, self._unknown)

    def stop(self) -> None:
        """End telling: what was not told yet is told by the next process."""
        self._isStarted = False
        timers = [self._timer, *(outlet.timer for outlet in self._outlets), *self._repeats]
        for timer in timers:
            if timer is not None and timer.active():
                timer.cancel()

    def change(self, rules: TellingRules, channels: Sequence[Channel]) -> None:
        """Tell by other rules and to other channels from now on; what was told stays so."""
        for outlet in self._outlets:
            if outlet.timer is not None and outlet.timer.active():
                outlet.timer.cancel()
        for timer in self._repeats:
            if timer.active():
                timer.cancel()
        self._repeats.clear()
        self._telling.rules = rules
        self._outlets = [_Outlet(channel) for channel in channels]
        if self._isStarted:
            for outlet in self._outlets:
                self._repeatIn(outlet)
        self._reschedule()

    def heard(self, event: LedgerEvent) -> None:
        """Take an event of the ledger."""
        now = self._reactor.seconds()
        if isinstance(event, Cleared):
            self._telling.cleared(event.entry, now)
        else:
            self._telling.raised(event.entry, now)
        self._reschedule()

    def findings(self) -> list[Finding]:
        """Channels that could not take the last news."""
        return [
            Finding("telling-failed", outlet.channel.name, outlet.problem)
            for outlet in self._outlets
            if outlet.problem
        ]

    # What was told before.

    def _known(self, rows: list[tuple[str, str]]) -> None:
        self._telling.remember({Key(*json.loads(name)): json.loads(value) for name, value in rows})
        self._isKnown = True
        self._reschedule()

    def _unknown(self, failure: Failure) -> None:
        _log.warn("what was told before is not known: {why}", why=failure.getErrorMessage())
        self._known([])

    # Turns.

    def _reschedule(self) -> None:
        if not self._isStarted or not self._isKnown:
            return
        if self._timer is not None and self._timer.active():
            self._timer.cancel()
        now = self._reactor.seconds()
        deadline = self._telling.deadline(now)
        self._timer = None if deadline is None else self._reactor.callLater(deadline - now, self._turn)

    def _turn(self) -> None:
        news = self._telling.take(self._reactor.seconds())
        if news:
            self._stored(news).addBoth(lambda _: self._tell(news))
        self._reschedule()

    def _stored(self, news: list[News]) -> Deferred[None]:
        if self._memory is None:
            return maybeDeferred(lambda: None)
        return self._memory.rememberNow(
            [(_ROOM, json.dumps(one.key), json.dumps(one.finding) if one.isRaised else None) for one in news]
        )

    def _tell(self, news: list[News]) -> None:
        for outlet in self._outlets:
            outlet.waiting = [*outlet.waiting, *news][-_MOST_NEWS:]
            self._send(outlet)

    def _send(self, outlet: _Outlet) -> None:
        if outlet.isTelling or not outlet.waiting or not self._isStarted:
            return
        news, outlet.waiting = outlet.waiting, []
        outlet.isTelling = True
        if outlet.timer is not None and outlet.timer.active():
            outlet.timer.cancel()
        telling = maybeDeferred(outlet.channel.tell, news)
        telling.addCallbacks(self._took, self._refused, callbackArgs=(outlet,), errbackArgs=(outlet, news))

    def _took(self, _: None, outlet: _Outlet) -> None:
        self.sent += 1
        outlet.isTelling, outlet.problem = False, ""
        self._send(outlet)

    def _refused(self, failure: Failure, outlet: _Outlet, news: list[News]) -> None:
        outlet.isTelling = False
        outlet.waiting = [*news, *outlet.waiting][-_MOST_NEWS:]
        why = failure.getErrorMessage() or type(failure.value).__name__
        if not outlet.problem:
            _log.warn("{channel} takes no news: {why}", channel=outlet.channel.name, why=why)
            if not failure.check(RDMAError, OSError):
                _log.debug("{trace}", trace=failure.getTraceback())
        outlet.problem = why
        if self._isStarted:
            outlet.timer = self._reactor.callLater(RETRY_SECONDS, self._send, outlet)

    def _repeatIn(self, outlet: _Outlet) -> None:
        seconds = outlet.channel.repeatSeconds
        if seconds:
            self._repeats = [timer for timer in self._repeats if timer.active()]
            self._repeats.append(self._reactor.callLater(seconds, self._repeat, outlet))

    def _repeat(self, outlet: _Outlet) -> None:
        """Tell a channel again of what is there: it knows by itself what is new in that."""
        self._repeatIn(outlet)
        if not outlet.waiting:
            outlet.waiting = [News(key, True, finding) for key, finding in self._telling.told.items()]
            self._send(outlet)
