"""
Findings for tests of notifications.
"""

from __future__ import annotations

from txrdma.fabric.advice import Severity
from txrdma.fabric.health import Finding
from txrdma.iba.types import GUID
from txrdma.monitor.diagnosis.findinglog import Entry, Key
from txrdma.monitor.events.alerts import Alert


def entryOf(kind: str = "width", where: str = "leaf 1", severity: Severity = Severity.WARNING) -> Entry:
    finding = Finding(kind, where, "it is slow", GUID(b"leaf0001"), 7)
    return Entry(Key("sweep", kind, where, 7), finding, severity, "Mend it.", 1000.0, 1000.0)


def alertsOf(*names: str, isRaised: bool = True) -> list[Alert]:
    entries = [entryOf(where=name) for name in names]
    if not isRaised:
        for entry in entries:
            entry.clearedAt = 2000.0
    return [Alert(entry.key, isRaised, entry.toDict()) for entry in entries]
