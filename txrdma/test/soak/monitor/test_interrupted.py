"""Each function of writers and alerts raises once, at its first, second and last call."""

from __future__ import annotations

from txrdma.test.unit.monitor import test_interrupted


class RemoteWriterTests(test_interrupted.RemoteWriterTests):
    STRIDE = 1


class HistoryTests(test_interrupted.HistoryTests):
    STRIDE = 1


class AlertTests(test_interrupted.AlertTests):
    STRIDE = 1
