"""Limits of the sweeps that signs of change cause."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from txrdma.monitor.reading.changesigns import MOST_UNPLANNED, UNPLANNED_SECONDS, UnplannedSweeps


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
