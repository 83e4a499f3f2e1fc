"""Findings, channels and stores for tests of notifications."""

from __future__ import annotations

from collections.abc import Sequence

from twisted.internet.defer import Deferred, fail, succeed

from txrdma.error import DeviceUnavailable
from txrdma.fabric.advice import Severity
from txrdma.fabric.health import Finding
from txrdma.iba.types import GUID
from txrdma.monitor.diagnosis.findinglog import Entry, Key
from txrdma.monitor.diagnosis.journal import FabricEvent
from txrdma.monitor.events.alerts import Alert
from txrdma.monitor.events.channels import AlertChannel
from txrdma.monitor.series.historystore import HistoryStore

Message = list[tuple[bool, str, str]]
"""Alerts of one message: whether each is raised, its kind, and its location."""


def entryOf(kind: str = "width", where: str = "leaf 1", severity: Severity = Severity.WARNING) -> Entry:
    finding = Finding(kind, where, "it is slow", GUID(b"leaf0001"), 7)
    return Entry(Key("sweep", kind, where, 7), finding, severity, "Mend it.", 1000.0, 1000.0)


def alertsOf(*names: str, isRaised: bool = True) -> list[Alert]:
    entries = [entryOf(where=name) for name in names]
    if not isRaised:
        for entry in entries:
            entry.clearedAt = 2000.0
    return [Alert(entry.key, isRaised, entry.toDict()) for entry in entries]


class RecordingOutlet(AlertChannel):
    """
    A channel that records what it sends.

    @ivar isBroken: whether it fails; C{isSilent}: whether it does not answer.
    @ivar raises: number of further calls that raise an exception.
    @ivar tries: number of calls; C{cancelled}: number of those that were cancelled.
    """

    def __init__(self, queue: str = "recorded", repeatSeconds: float = 0.0, raises: int = 0) -> None:
        self.name = self.queue = queue
        self.repeatSeconds = repeatSeconds
        self.raises = raises
        self.messages: list[Message] = []
        self.alerts: list[Alert] = []
        self.isBroken = self.isSilent = False
        self.tries = self.cancelled = 0

    def send(self, alerts: Sequence[Alert]) -> Deferred[None]:
        self.tries += 1
        if self.raises:
            self.raises -= 1
            raise ValueError("the channel fails")
        if self.isSilent:
            return Deferred(self._cancel)
        if self.isBroken:
            return fail(DeviceUnavailable("it is broken"))
        self.alerts += alerts
        self.messages.append([(one.isRaised, one.finding["kind"], one.finding["where"]) for one in alerts])
        return succeed(None)

    def _cancel(self, _: object) -> None:
        self.cancelled += 1

    def output(self) -> list[Message]:
        """Return the messages since the last call."""
        messages, self.messages = self.messages, []
        return messages

    def wheres(self) -> list[str]:
        """Return the locations of all alerts since the last call."""
        return [where for message in self.output() for _isRaised, _kind, where in message]


class StoredMemory:
    """A store, without a thread."""

    def __init__(self, store: HistoryStore) -> None:
        self._store = store

    def append(self, events: Sequence[FabricEvent]) -> None:
        self._store.append(events)

    def appendNow(self, events: Sequence[FabricEvent]) -> Deferred[None]:
        self._store.append(events)
        return succeed(None)


class AbsentMemory:
    """A store that cannot be written while C{isAbsent}."""

    isAbsent = True

    def append(self, events: Sequence[FabricEvent]) -> None:
        """Drop events that would be stored later."""

    def appendNow(self, events: Sequence[FabricEvent]) -> Deferred[None]:
        return fail(DeviceUnavailable("the disk is away")) if self.isAbsent else succeed(None)
