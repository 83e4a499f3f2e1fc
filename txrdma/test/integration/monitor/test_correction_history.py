"""History of error correction, in a complete monitor on a real reactor."""

from __future__ import annotations

from typing import Any

from twisted.internet import reactor as theReactor
from twisted.internet.task import deferLater
from twisted.trial.unittest import TestCase

from txrdma.fabric.errorcorrection import CORRECTED, SYMBOLS
from txrdma.fabric.errorcounters import UNCORRECTABLE
from txrdma.monitor.config import parseConfig
from txrdma.monitor.series.exposition import guidText
from txrdma.monitor.series.history import BatchWriter
from txrdma.sim.fabric import SimulatedFabric
from txrdma.sim.nets.fattree import fatTree
from txrdma.tap import monitor
from txrdma.test.support.monitor.fetching import Answer, Connection

reactor: Any = theReactor

WATCHED = """
history.file = "{history}"
web.listen = ""

[poll]
interval = 0.2
states = 1
notices = false
survey = 0
"""


class CorrectionHistoryTests(TestCase):
    """A small fat tree whose links correct errors."""

    timeout = 60
    slowBecause = "it waits until counters have been read three times and written"

    async def test_history(self) -> None:
        """Blocks and symbols have a history in REST, and the page of a port has charts for it."""
        self.patch(BatchWriter, "batchSeconds", 0.1)
        fabric = SimulatedFabric(reactor, fatTree(4, 4))
        self.addCleanup(fabric.close)
        fabric.correct()
        fabric.growCounters("leaf0000", 1, **{CORRECTED: 1000.0, SYMBOLS: 2000.0})
        config = parseConfig(WATCHED.format(history=self.mktemp()))
        service = monitor.MonitorService(reactor, config, lambda: fabric.attach("h00000"))
        service.startService()
        self.addCleanup(service.stopService)
        port = f"{guidText(fabric.node('leaf0000').guid)}/"
        grown = {}
        for name in (CORRECTED, SYMBOLS, UNCORRECTABLE):
            path = f"/api/v1/history/{port}1/{name}?resolution=readings"
            points: list[Any] = []
            while len(points) < 2:  # the last one may still be replaced
                points = (await self._asked(service, path))["points"]
            self.assertIsNone(points[0]["peak"])
            grown[name] = points[0]["grown"]
        self.assertGreater(grown[CORRECTED], 0)
        self.assertApproximates(grown[SYMBOLS], 2 * grown[CORRECTED], 2)  # which have been read at one time
        self.assertEqual(grown[UNCORRECTABLE], 0)
        refused = await self._asked(service, f"/api/v1/history/{port}1/nonsense")
        self.assertIn(CORRECTED, refused["error"])
        page = await self._get(service, f"/nodes/{port}ports/1")
        self.assertIn('data-bits="212500000000"', page.text)

    async def _get(self, service: monitor.MonitorService, path: str) -> Answer:
        connection = Connection(service.site.factory)
        connection.ask(path)
        while not connection.transport.disconnecting:
            await deferLater(reactor, 0.01)
        return connection.answer

    async def _asked(self, service: monitor.MonitorService, path: str) -> Any:
        return (await self._get(service, path)).json
