"""
Garbage collection of a process that monitors fabrics for years: no other module changes Python's settings.

A full collection visits all objects, and large fabrics have millions of long-lived ones.
So objects that have survived a collection are frozen, some ten thousands at a time: further collections
exclude them, and take milliseconds. Reference counting still frees frozen objects; only reference cycles of
them are not found. The models of fabrics are such cycles, and are broken up when they are replaced. The rest,
such as connections that were frozen while they were open, is freed by complete collections, which follow the
growth of frozen objects: garbage is at most half of the objects in use, plus the growth of one hour.
"""

from __future__ import annotations

import gc
from time import perf_counter
from typing import Final

from twisted.application.service import Service
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from txrdma.kit.delayedcalls import Timer
from txrdma.monitor.series.exposition import Histogram

_log = Logger()

MOST_UNFROZEN: Final = 15_000
"""Number of objects beyond which those that survive a collection are frozen."""

MOST_COLLECTED: Final = 30_000
"""Number of objects beyond which they are frozen without a collection, which would take more than 50 ms."""

COMPLETE_SECONDS: Final = 3600.0
"""Least time between complete collections, which block the process for 0.3 s for each million of objects."""

MOST_GROWTH: Final = 1.5
"""Growth of the number of frozen objects since a complete collection after which another one follows."""

_CHECK_SECONDS: Final = 0.1
_THRESHOLDS: Final = (2000, 1 << 30, 1 << 30)
"""
Thresholds of generations: all but the youngest are collected by checks only. Rows of a history have thirty
values each, so that a collection of ten thousand new ones takes up to 130 ms. The first threshold is of
objects that were made less those that were freed, old ones included, so that the youngest generation can
become large, too, unless it is frozen.
"""


class GarbageCollection(Service):
    """
    Decides about garbage collections of the process while the service runs, and measures them.

    Without C{gc.freeze}, as in PyPy, it does nothing.

    @ivar complete: number of complete collections.
    @ivar pauses: durations of all collections.
    """

    def __init__(self, clock: IReactorTime) -> None:
        self.complete = 0
        self._clock = clock
        self._timer = Timer(clock)
        self._thresholds: tuple[int, int, int] | None = None
        self._frozen = 0
        self._completeAt = self._pauseBegan = 0.0
        text = "Time for which a garbage collection has blocked the process"
        self.pauses = Histogram("txrdma_monitor_garbage_collection_seconds", text)

    def startService(self) -> None:
        """Set the thresholds of Python's garbage collector, measure it, and freeze objects from now on."""
        super().startService()  # type: ignore[no-untyped-call]  # of Twisted's
        if not hasattr(gc, "freeze"):
            return
        self._thresholds = gc.get_threshold()
        gc.set_threshold(*_THRESHOLDS)
        gc.callbacks.append(self._collected)
        self._frozen = 0
        self._completeAt = self._clock.seconds()
        self._timer.start(_CHECK_SECONDS, self._check)

    def stopService(self) -> None:
        """Restore the thresholds of Python's garbage collector, and unfreeze all objects."""
        super().stopService()  # type: ignore[no-untyped-call]  # of Twisted's
        self._timer.stop()
        thresholds, self._thresholds = self._thresholds, None
        if thresholds is not None:
            gc.callbacks.remove(self._collected)
            gc.set_threshold(*thresholds)
            gc.unfreeze()

    def _collected(self, phase: str, info: dict[str, int]) -> None:
        """Measure a collection, which may be in any thread."""
        now = perf_counter()
        if phase == "start":
            self._pauseBegan = now
        else:
            self.pauses.add(now - self._pauseBegan)

    def _check(self) -> None:
        try:
            if self._clock.seconds() - self._completeAt >= COMPLETE_SECONDS:
                self._collectComplete()
            else:
                self._freeze()
        finally:
            self._timer.start(_CHECK_SECONDS, self._check)

    def _freeze(self) -> None:
        """Freeze objects that survive a collection, if they are many."""
        count = len(gc.get_objects())
        if count <= MOST_UNFROZEN:
            return
        if count <= MOST_COLLECTED:
            gc.collect()
            count = len(gc.get_objects())
        if count > MOST_UNFROZEN // 2:
            gc.freeze()

    def _collectComplete(self) -> None:
        """Collect all objects if the frozen ones have grown much."""
        self._completeAt = self._clock.seconds()
        frozen = gc.get_freeze_count()
        if not self._frozen:  # objects frozen in the first hour are in use
            self._frozen = frozen
        elif frozen > MOST_GROWTH * self._frozen:
            gc.unfreeze()
            gc.collect()
            gc.freeze()
            self.complete += 1
            self._frozen = gc.get_freeze_count()
            _log.info(
                "collected all garbage: {before} objects before, {after} after it",
                before=frozen,
                after=self._frozen,
            )
