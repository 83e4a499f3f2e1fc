"""
News of findings: what is told to others, and when.

A finding is told after it has been there for a while, together with others of about the same time, and once:
what a former process has told is not told again. The time is an argument.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from math import inf
from typing import Any, Final

from txrdma.fabric.advice import Severity
from txrdma.kit.values import frozen
from txrdma.monitor.diagnosis.findinglog import Entry, Key

GRACE_SECONDS: Final = 900.0
"""Seconds after which a finding that a former process has told, and that is not here, counts as cleared."""


@frozen
class Silence:
    """
    Findings that are not told for some time.

    @ivar kind: kind of the findings, with C{*} for any letters; C{where} is the place likewise.
    @ivar until: end of the silence, in seconds since 1970; infinity for none.
    """

    kind: str = "*"
    where: str = "*"
    until: float = inf

    def holds(self, entry: Entry) -> bool:
        """True for a finding that the silence is for, whatever the time."""
        found = entry.finding
        return fnmatchcase(found.kind, self.kind) and fnmatchcase(found.where, self.where)


@frozen
class TellingRules:
    """
    Rules for what is told.

    @ivar delaySeconds: time that a finding has to be there before it is told.
    @ivar groupSeconds: time in which findings are collected for one message.
    @ivar least: least severity that is told.
    """

    delaySeconds: float = 60.0
    groupSeconds: float = 10.0
    least: Severity = Severity.WARNING
    silences: tuple[Silence, ...] = ()


@frozen
class News:
    """
    A finding that came or went, to be told.

    @ivar finding: the finding as JSON can carry it.
    """

    key: Key
    isRaised: bool
    finding: Mapping[str, Any]


class Telling:
    """
    Findings that wait to be told, and those that were.

    @ivar told: findings that were told and are not cleared, as JSON can carry them.
    """

    def __init__(self, rules: TellingRules, now: float) -> None:
        self.rules = rules
        self.told: dict[Key, Mapping[str, Any]] = {}
        self._unseen: dict[Key, None] = {}
        self._waiting: dict[Key, tuple[float, Entry]] = {}
        self._leaving: dict[Key, tuple[float, Mapping[str, Any]]] = {}
        self._graceEnd = now + GRACE_SECONDS
        self._expected: frozenset[Key] = frozenset()

    def expect(self, keys: Iterable[Key]) -> None:
        """Take findings that are held for there: the ledger tells what becomes of them, whenever that is."""
        self._expected = frozenset(keys)

    def remember(self, told: Mapping[Key, Mapping[str, Any]]) -> None:
        """Take what a former process has told."""
        for key, finding in told.items():
            if key not in self.told:
                self.told[key] = finding
                if self._waiting.pop(key, None) is None and key not in self._expected:
                    self._unseen[key] = None

    def raised(self, entry: Entry, now: float) -> None:
        """Note that a finding was raised, or is there as it was when a former process ended."""
        key = entry.key
        self._unseen.pop(key, None)
        leaving = self._leaving.pop(key, None)
        if leaving is not None:  # that it had gone was not told yet
            self.told[key] = leaving[1]
        elif key not in self.told and entry.severity >= self.rules.least:
            self._waiting[key] = (now + self.rules.delaySeconds, entry)

    def cleared(self, entry: Entry, now: float) -> None:
        """Note that a finding was cleared: it is told if its raising was."""
        key = entry.key
        self._unseen.pop(key, None)
        self._waiting.pop(key, None)
        if self.told.pop(key, None) is not None:
            self._leaving[key] = (now, entry.toDict())

    def deadline(self, now: float) -> float | None:
        """Time at which there may be something to L{take}; None while nothing waits."""
        dues = [self._due(due, entry) for due, entry in self._waiting.values()]
        dues += [due for due, _finding in self._leaving.values()]
        first = min(dues, default=inf) + self.rules.groupSeconds
        if self._unseen:
            first = min(first, self._graceEnd)
        return None if first == inf else max(first, now)

    def take(self, now: float) -> list[News]:
        """Take what is to be told now: from then on it is told."""
        if self._unseen and now >= self._graceEnd:
            for key in self._unseen:
                self._leaving[key] = (now, {**self.told.pop(key), "clearedAt": now})
            self._unseen.clear()
        due = [key for key, one in self._waiting.items() if self._due(*one) <= now]
        news = [News(key, True, self._waiting.pop(key)[1].toDict()) for key in due]
        self.told.update((one.key, one.finding) for one in news)
        news += [News(key, False, finding) for key, (_due, finding) in self._leaving.items()]
        self._leaving.clear()
        return news

    def _due(self, due: float, entry: Entry) -> float:
        """Time at which a finding may be told: at the end of all silences for it, one after the other."""
        for silence in sorted(self.rules.silences, key=lambda one: one.until):
            if silence.until > due and silence.holds(entry):
                due = silence.until
        return due
