"""Each function of writers, alerts and services raises once, at its first, second and last call."""

from __future__ import annotations

from txrdma.test.unit.monitor import test_interrupted, test_interrupted_service


class RemoteWriterTests(test_interrupted.RemoteWriterTests):
    STRIDE = 1


class HistoryTests(test_interrupted.HistoryTests):
    STRIDE = 1


class AlertTests(test_interrupted.AlertTests):
    STRIDE = 1


class PairTests(test_interrupted_service.PairTests):
    STRIDE = 1


class LeaseTests(test_interrupted_service.LeaseTests):
    STRIDE = 1
