"""Restarts of nodes, as counters and links show them, and counters that an administrator clears."""

from __future__ import annotations

from txrdma.fabric.errorcounters import DATA_COUNTERS, ERROR_COUNTERS, UNICAST_COUNTERS
from txrdma.monitor.diagnosis.tallies import TallyLimit
from txrdma.test.unit.monitor.test_poller import PollerTestCase

ERRORS = ERROR_COUNTERS[:12]
"""Error counters that all ports have."""


class RestartTests(PollerTestCase):
    """A restart concerns a node: link errors counted meanwhile are no faults."""

    limits = (TallyLimit("symbolErrorCounter", 10, 600.0), TallyLimit("portXmitDiscards", 600, 600.0))

    def setUp(self) -> None:
        super().setUp()
        self.fabric.traffic(1e6, 1e3)

    def clear(self, name: str, *counters: str) -> None:
        """Set counters of all ports of a node to zero."""
        node = self.fabric.node(name)
        for port in node.external:
            self.fabric.setCounters(name, port.number, **dict.fromkeys(counters, 0))

    def flap(self, *clearing: str) -> list[tuple[str, str]]:
        """
        Let a link go down every 280 s, and clear these counters of all nodes every 560 s.

        @return: the raised findings.
        """
        self.started()
        for _ in range(2):
            for name in ("left", "right", "a", "b", "c"):
                self.clear(name, *clearing)
            for _down in range(2):
                self.pump(10.0)
                for name, number in (("left", 4), ("right", 4)):
                    self.fabric.counters(name, number).add(linkDownedCounter=1)
                self.pump(270.0)
        return [(kind, where) for what, kind, where in self.output() if what == "raised"]

    def test_errorsCleared(self) -> None:
        """Error counters that are cleared every ten minutes do not hide a flapping link."""
        self.assertIn(("flapping", "left"), self.flap(*ERRORS))

    def test_allCleared(self) -> None:
        """A flapping link is detected even if all counters are cleared every ten minutes."""
        self.assertIn(("flapping", "left"), self.flap(*ERRORS, *DATA_COUNTERS, *UNICAST_COUNTERS))

    def test_reboot(self) -> None:
        """Errors and discards of a link are not faults while its host reboots, however long that takes."""
        self.started()
        links = (("left", 2), ("right", 5))
        for _ in range(2):
            for name, number in links:
                self.fabric.cut(name, number)
            self.fabric.growCounters("left", 2, portXmitDiscards=150.0)
            self.pump(180.0)
            self.fabric.growCounters("left", 2, portXmitDiscards=0.0)
            self.clear("b", *ERRORS, *DATA_COUNTERS, *UNICAST_COUNTERS)
            for name, number in links:
                self.fabric.heal(name, number)
            for name, number in (("left", 2), ("b", 1)):
                self.fabric.counters(name, number).add(symbolErrorCounter=300)
            self.pump(240.0)
        kinds = {kind for _what, kind, _where in self.output()}
        self.assertEqual(kinds - {"node-gone", "link-gone", "node-silent"}, set())
        self.fabric.counters("left", 2).add(symbolErrorCounter=300)
        self.pump(20.0)
        self.assertIn(("raised", "symbol-errors", "left"), self.output())

    def test_quickRestart(self) -> None:
        """A restart between two readings is detected if all counters of the node have restarted."""
        self.started()
        self.fabric.counters("left", 2).add(linkDownedCounter=3)
        self.clear("b", *ERRORS, *DATA_COUNTERS, *UNICAST_COUNTERS)
        self.fabric.counters("b", 1).add(symbolErrorCounter=300)
        self.pump(60.0)
        self.assertEqual(self.output(), [])
