"""
Watch of the master subnet manager: its identity, its liveness and its progress.

Follows InfiniBand Architecture vol. 1, 14.4.1 (SMInfo, whose ActCount shows liveness). The time is an
argument.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import Final

from txrdma.fabric.health import Finding
from txrdma.iba.types import GUID
from txrdma.mad.layouts.smp import SMInfo
from txrdma.mad.layouts.values import SMState

RECENT_SECONDS: Final = 600.0
"""Seconds for which a new master is reported."""

STILL_SECONDS: Final = 300.0
"""Seconds without a change of ActCount after which a manager is reported as hung."""

_SILENT_TIMES: Final = 2
"""Consecutive requests without an answer after which a manager is reported as silent."""


class ManagerWatch:
    """
    Watch of the subnet manager that is entered in the local port's PortInfo.

    @ivar guid: GUID of the port of the master; None before its first answer.
    """

    def __init__(self) -> None:
        self.guid: GUID | None = None
        self._lid = 0
        self._info: SMInfo | None = None
        self._silences = 0
        self._why = ""
        self._movedAt = 0.0
        self._changedAt = -inf
        self._change = ""

    def answered(self, lid: int, info: SMInfo, now: float) -> bool:
        """
        Process the answer of the manager at a LID.

        @return: whether the master has changed or restarted: a new one knows no subscriptions and may assign
            other LIDs.
        """
        before = self._info
        self._lid, self._info, self._silences, self._why = lid, info, 0, ""
        if before is None or info.guid != self.guid or info.actCount != before.actCount:
            self._movedAt = now
        isOther = self.guid is not None and info.guid != self.guid
        if isOther:
            self._changedAt = now
            self._change = f"it is {info.guid} (LID {lid}) now, and was {self.guid}"
        self.guid = info.guid
        return isOther or (before is not None and info.actCount < before.actCount)

    def silent(self, lid: int, why: str) -> None:
        """Record that the manager at a LID did not answer; the LID is 0 if the local port knows none."""
        self._lid, self._why = lid, why
        self._silences += 1

    @staticmethod
    def unwatched(found: Iterable[Finding]) -> list[Finding]:
        """Return a sweep's findings about managers without those that the watch itself reports."""
        return [one for one in found if one.guid is not None or one.kind not in ("no-sm", "sm-silent")]

    def findings(self, now: float) -> list[Finding]:
        """Return the faults of the master, and whether it has changed recently."""
        where = f"LID {self._lid}"
        found = []
        if self._silences:
            if not self._lid:
                found.append(Finding("no-sm", "our port", "it knows no subnet manager"))
            elif self._silences >= _SILENT_TIMES:
                found.append(Finding("sm-silent", where, f"the subnet manager: {self._why}"))
        elif self._info is not None:
            if self._info.smState is not SMState.MASTER:
                text = f"the subnet manager that is known to us is {self._info.smState.name}"
                found.append(Finding("no-sm", where, text))
            elif now - self._movedAt >= STILL_SECONDS:
                text = f"it has done nothing for {now - self._movedAt:.0f} seconds (ActCount)"
                found.append(Finding("sm-still", where, text))
        if now - self._changedAt < RECENT_SECONDS:
            found.append(Finding("sm-changed", "subnet manager", self._change))
        return found
