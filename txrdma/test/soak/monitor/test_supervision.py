"""Each function of a poller's collaborators raises at a later call."""

from __future__ import annotations

from txrdma.test.unit.monitor import test_supervision


class LaterTests(test_supervision.ChaosTests):
    """A poller with one collaborator that raises at its second, third or fifth call."""

    CALLS = (2, 3, 5)
