"""
Teller of findings: news go to all channels, once, and again to a channel that could not take them.

That a finding was told is stored before it is told, together with the queues in which it waits: see
L{txrdma.monitor.events.notificationqueue}.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Final, Protocol, Union

from twisted.internet.defer import Deferred, TimeoutError
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from txrdma.error import RDMAError
from txrdma.fabric.health import Finding
from txrdma.monitor.diagnosis.findinglog import Cleared, Key, LedgerEvent
from txrdma.monitor.events.alerts import News, Telling, TellingRules
from txrdma.monitor.events.channels import Channel
from txrdma.monitor.events.notificationqueue import forgotten, Outlet, QUEUE, restored, RETRY_SECONDS, Stored
from txrdma.monitor.supervisor import SupervisedLoop, Supervisor

_log = Logger()

_ROOM: Final = "told"
"""Room of the memory: findings that were told and not cleared."""

MEMORY_SECONDS: Final = 30.0
"""Seconds to wait for the memory: a database that hangs keeps no finding from being told."""


class Memory(Protocol):
    """Memory that outlasts a process."""

    def rememberedIn(self, room: str) -> Deferred[list[tuple[str, str]]]:
        """Fires with names and values of all that is remembered in a room."""

    def rememberNow(self, several: Sequence[tuple[str, str, Union[str, None]]]) -> Deferred[None]:
        """Remember values by their rooms and names, and forget where there is none; fires when it is done."""


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
        supervisor: Supervisor | None = None,
    ) -> None:
        """@param memory: memory of what was told; without one a new process tells everything again."""
        self.sent = 0
        self._reactor = reactor
        self._telling = Telling(rules, reactor.seconds())
        self._memory = memory
        self._supervisor = Supervisor(reactor) if supervisor is None else supervisor
        self._outlets = [self._outlet(channel) for channel in channels]
        self._loop = self._supervisor.add(SupervisedLoop(reactor, "telling", self._take, self._untilNext))
        self._repeats: list[IDelayedCall] = []
        self._isStarted = self._isKnown = False

    def _outlet(self, channel: Channel) -> Outlet:
        outlet = Outlet(self._reactor, channel, self._store, self._took)
        self._supervisor.add(outlet.loop)
        return outlet

    def _took(self) -> None:
        self.sent += 1

    def expect(self, keys: Iterable[Key]) -> None:
        """Take findings of a former process that are held for there: see L{Telling.expect}."""
        self._telling.expect(keys)

    def start(self) -> None:
        """Read what was told before, and what was left waiting; tell from then on."""
        self._isStarted = True
        self._loop.start(None)
        for outlet in self._outlets:
            self._repeatIn(outlet)
        Deferred.fromCoroutine(self._recall()).addErrback(self._failed)

    def stop(self) -> Deferred[None]:
        """
        End telling: what was not told yet is told by the next process.

        @return: fires when all channels have taken what they were being told, or have had their time.
        """
        self._isStarted = False
        self._loop.stop()
        for timer in self._repeats:
            if timer.active():
                timer.cancel()
        return Deferred.fromCoroutine(self._end())

    async def _end(self) -> None:
        for ending in [outlet.stop() for outlet in self._outlets]:
            await ending

    def change(self, rules: TellingRules, channels: Sequence[Channel]) -> None:
        """
        Tell by other rules and to other channels from now on; what was told stays so.

        What waits for a channel waits for the one that has its place.
        """
        for timer in self._repeats:
            if timer.active():
                timer.cancel()
        self._repeats.clear()
        self._telling.rules = rules
        before = {outlet.channel.queue: outlet for outlet in self._outlets}
        self._outlets = []
        for channel in channels:
            outlet = before.pop(channel.queue, None)
            if outlet is None:
                outlet = self._outlet(channel)
            else:
                outlet.moved(channel)
            self._outlets.append(outlet)
            if self._isStarted:
                self._repeatIn(outlet)
        for outlet in before.values():
            self._supervisor.remove(outlet.loop)
            outlet.stop().addErrback(self._failed)
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
            Finding("telling-failed", outlet.channel.name, outlet.loop.problem + _lost(outlet.dropped))
            for outlet in self._outlets
            if outlet.loop.problem
        ]

    # What was told before.

    async def _recall(self) -> None:
        """Learn what a former process has told, and begin to tell, with what it has left waiting."""
        with _log.failuresHandled("while it was read what was told before: all of it is told again"):
            await self._restore()
        self._isKnown = True
        for outlet in self._outlets:
            outlet.send()
        self._reschedule()

    async def _restore(self) -> None:
        """Take what a former process has told, and what it has left waiting for channels that are here."""
        told = {Key(*json.loads(name)): json.loads(value) for name, value in await self._remembered(_ROOM)}
        self._telling.remember(told)
        left = restored(await self._remembered(QUEUE))
        for outlet in self._outlets:
            outlet.restore(left.pop(outlet.channel.queue, {}))
        await self._store([row for queue, news in left.items() for row in forgotten(queue, news)])

    async def _remembered(self, room: str) -> list[tuple[str, str]]:
        if self._memory is None:
            return []
        try:
            return await self._memory.rememberedIn(room).addTimeout(MEMORY_SECONDS, self._reactor)
        except (RDMAError, TimeoutError) as error:
            _log.warn("what was told before is not known: {why}", why=str(error))
            return []

    async def _store(self, rows: Sequence[Stored]) -> None:
        """Store rows for the next process, if that can be; the history tells why it cannot."""
        if self._memory is not None and rows:
            try:
                await self._memory.rememberNow(rows).addTimeout(MEMORY_SECONDS, self._reactor)
            except (RDMAError, TimeoutError) as error:
                _log.debug("what is told is not stored: {why}", why=str(error))

    @staticmethod
    def _failed(failure: Failure) -> None:
        _log.failure("while others were told", failure)

    # Turns.

    def _reschedule(self) -> None:
        pause = self._untilNext()
        if self._isKnown and pause is not None:
            self._loop.runIn(pause)

    def _untilNext(self) -> float | None:
        """Time until there may be something to tell."""
        now = self._reactor.seconds()
        deadline = self._telling.deadline(now)
        least = RETRY_SECONDS if self._loop.failures else 0.0
        return None if deadline is None else max(deadline - now, least)

    async def _take(self) -> bool:
        """Store that news are told and that they wait; then tell them. False if there are none."""
        news = self._telling.take(self._reactor.seconds())
        if not news:
            return False
        rows: list[Stored] = [
            (_ROOM, json.dumps(one.key), json.dumps(one.finding) if one.isRaised else None) for one in news
        ]
        outlets = list(self._outlets)
        for outlet in outlets:
            rows += outlet.admit(news)
        with self._loop.step("storing"):
            await self._store(rows)
        for outlet in outlets:
            outlet.send()
        return True

    def _repeatIn(self, outlet: Outlet) -> None:
        seconds = outlet.channel.repeatSeconds
        if seconds:
            self._repeats = [timer for timer in self._repeats if timer.active()]
            self._repeats.append(self._reactor.callLater(seconds, self._repeat, outlet))

    def _repeat(self, outlet: Outlet) -> None:
        """Tell a channel again of what is there: it knows by itself what is new in that."""
        self._repeatIn(outlet)
        outlet.repeat([News(key, True, finding) for key, finding in self._telling.told.items()])


def _lost(number: int) -> str:
    return f"; {number} older news were dropped, as too many waited" if number else ""
