"""What a monitor measures of its process, once for all fabrics."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from twisted.application.service import MultiService

from txrdma.monitor.garbage import GarbageCollection
from txrdma.monitor.iterations import IterationTimes
from txrdma.monitor.series.exposition import Family


class ProcessMeasures(MultiService):
    """Garbage collections and reactor iterations of the process."""

    def __init__(self, reactor: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # of Twisted's
        self._garbage, self._iterations = GarbageCollection(reactor), IterationTimes(reactor)
        for service in (self._garbage, self._iterations):
            service.setServiceParent(self)  # type: ignore[no-untyped-call]  # of Twisted's

    def families(self) -> Iterator[Family]:
        """Yield the metric families of what can be measured here."""
        yield self._garbage.pauses.family()
        if self._iterations.isMeasured:
            yield self._iterations.durations.family()
