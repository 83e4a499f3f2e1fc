"""Levels of detail of a history, and how long each is stored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from txrdma.error import InvalidRequest
from txrdma.kit.values import frozen

_HOUR: Final = 3600
_DAY: Final = 24 * _HOUR

_LATE_SECONDS: Final = 30
"""Seconds by which readings may be late, and still count in their minute."""


@frozen
class Level:
    """
    A level of detail of a history.

    @ivar name: name of its tables, followed by the number of the period.
    @ivar stepSeconds: time covered by one row of a port; 0 for unmodified readings.
    @ivar periodSeconds: time covered by one table.
    @ivar retentionSeconds: minimum time for which rows are stored.
    @ivar mostOctets: size beyond which older tables are dropped, too; the newest two are not counted.
    """

    name: str
    stepSeconds: int
    periodSeconds: int
    retentionSeconds: int
    mostOctets: int = 256 << 30

    def span(self, period: int) -> tuple[int, int]:
        """Begin and end of a period by its number, in seconds since 1970."""
        return period * self.periodSeconds, (period + 1) * self.periodSeconds

    def completeUntil(self, finer: Level, now: int) -> int:
        """Return the time until which rows of this level, computed from a finer one, have all readings."""
        return (now - finer.stepSeconds - _LATE_SECONDS) // self.stepSeconds * self.stepSeconds


def indexOf(name: str, levels: Sequence[Level]) -> int:
    """Return the index of the level with this name, or raise L{InvalidRequest}."""
    names = [level.name for level in levels]
    if name not in names:
        raise InvalidRequest(f"there is no level {name!r}, but {', '.join(names)}")
    return names.index(name)


DEFAULT_LEVELS: Final = (
    Level("readings", 0, 600, 6 * _HOUR, 32 << 30),
    Level("minutes", 60, _DAY, 28 * _DAY),
    Level("hours", _HOUR, 30 * _DAY, 1100 * _DAY),
)
"""Readings of six hours, minutes of four weeks and hours of three years; of huge fabrics less."""

EVENTS: Final = Level("events", 0, _HOUR, 400 * _DAY, 256 << 20)
"""Events of more than a year. They are in one table, which is examined once in each period."""
