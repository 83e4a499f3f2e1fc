"""Journal of changes: nodes and links that appear or disappear, speeds and widths of links, findings."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

from txrdma.iba.types import GUID
from txrdma.kit.values import frozen
from txrdma.monitor.diagnosis.findinglog import FindingEvent, Raised, Resumed

KINDS: Final = (
    *("node-came", "node-gone", "link-came", "link-gone", "link-changed"),
    *("finding-raised", "finding-cleared"),
)
"""Kinds of changes."""

MOST_CHANGES: Final = 10_000
"""Maximum number of changes in a journal; the oldest are dropped."""


@frozen
class Change:
    """
    Change of a fabric, or of its findings.

    @ivar at: time at which it was seen, in seconds since 1970.
    @ivar kind: one of L{KINDS}.
    @ivar where: readable name of the node or port; C{guid} and C{port} identify it for programs.
    """

    at: float
    kind: str
    where: str
    text: str
    guid: GUID | None = None
    port: int | None = None


class Journal:
    """
    Journal of the most recent changes of one fabric.

    @ivar changes: changes in chronological order.
    @ivar number: number of changes so far.
    """

    def __init__(self) -> None:
        self.changes: deque[Change] = deque(maxlen=MOST_CHANGES)
        self.number = 0

    def restore(self, changes: Iterable[Change], number: int) -> None:
        """Add the changes that a previous process has stored; it had counted C{number} of them."""
        self.changes.extend(changes)
        self.number = number

    def add(self, changes: Iterable[Change]) -> None:
        """Add changes, in chronological order."""
        for change in changes:
            self.changes.append(change)
            self.number += 1

    def since(self, at: float) -> list[Change]:
        """Return the changes since a time, the latest first."""
        found = []
        for change in reversed(self.changes):
            if change.at < at:
                break
            found.append(change)
        return found

    def findingChanged(self, event: FindingEvent, now: float) -> None:
        """Add a finding that was raised or cleared."""
        if not isinstance(event, Resumed):
            finding = event.entry.finding
            kind = "finding-raised" if isinstance(event, Raised) else "finding-cleared"
            text = f"{finding.kind}: {finding.text}"
            self.add([Change(now, kind, finding.where, text, finding.guid, finding.port)])
