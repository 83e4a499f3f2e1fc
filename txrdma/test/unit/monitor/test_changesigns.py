"""What signs of change cost: searches of a fabric, and sweeps."""

from __future__ import annotations

from collections.abc import Iterator

from twisted.trial.unittest import SynchronousTestCase

from txrdma.fabric.model import Fabric, Port
from txrdma.iba.types import LID
from txrdma.mad.layouts.messages import Notice
from txrdma.mad.layouts.traps import LocalChangeDetails, Trap
from txrdma.monitor.reading.changesigns import (
    ChangeSigns,
    MOST_UNPLANNED,
    UNPLANNED_SECONDS,
    UnplannedSweeps,
)


class SearchedFabric(Fabric):
    """A fabric that counts the searches of all its ports."""

    searches = 0

    def endPorts(self) -> Iterator[Port]:
        self.searches += 1
        return super().endPorts()


class ChangeSignsTests(SynchronousTestCase):
    def test_unknownLIDs(self) -> None:
        """Notices about any number of LIDs cost one search of all ports for each version of a fabric."""
        signs, fabric = ChangeSigns(), SearchedFabric()
        for version, searches in ((1, 1), (2, 2)):
            for lid in range(1, 600):
                details = LocalChangeDetails(lid=LID(lid)).encode()
                notice = Notice(isGeneric=True, trapNumber=Trap.LOCAL_CHANGES, details=details)
                self.assertTrue(signs.noticed(notice, fabric, version))
            self.assertEqual(fabric.searches, searches)


class UnplannedSweepsTests(SynchronousTestCase):
    def test_oneIsDue(self) -> None:
        """Signs of change wait for the sweep that is due."""
        sweeps = UnplannedSweeps()
        self.assertEqual([sweeps.next(0.0, at) for at in (5.0, 1.0, 9.0)], [5.0, None, None])
        self.assertEqual(sweeps.next(5.0, 6.0), 6.0)

    def test_plannedSweepTakesItsPlace(self) -> None:
        sweeps = UnplannedSweeps()
        sweeps.next(0.0, 5.0)
        sweeps.begin(2.0)
        self.assertEqual(sweeps.next(2.0, 3.0), 3.0)

    def test_consecutive(self) -> None:
        """After C{MOST_UNPLANNED} sweeps at once, the next one waits for all of their time."""
        sweeps = UnplannedSweeps()
        times = [float(number) for number in range(MOST_UNPLANNED)]
        self.assertEqual([sweeps.next(at, at) for at in times], times)
        later = MOST_UNPLANNED * UNPLANNED_SECONDS
        self.assertEqual(sweeps.next(times[-1], times[-1]), later)
        self.assertEqual(sweeps.next(later, later), later + 1)
