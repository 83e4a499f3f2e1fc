"""Each function of message connections and rsockets raises once, at its first, second and last call."""

from __future__ import annotations

from txrdma.test.unit.cm import test_interrupted_rsocket, test_interrupted_transports


class RSocketTests(test_interrupted_rsocket.RSocketTests):
    STRIDE = 1


class TransportTests(test_interrupted_transports.TransportTests):
    STRIDE = 1


class NameTests(test_interrupted_transports.NameTests):
    STRIDE = 1
