"""The monitor of snapshots: C{twistd fabric-monitor --replay}."""

from __future__ import annotations

import time
from datetime import datetime
from pathlib import Path
from typing import Any

from twisted.internet import reactor as theReactor
from twisted.internet.defer import Deferred
from twisted.python.usage import UsageError
from twisted.trial.unittest import TestCase
from twisted.web.client import Agent, readBody

from txrdma.commands.demo_fabric import urlOf
from txrdma.fabric.discovery import Sweep
from txrdma.fabric.recorder import record
from txrdma.fabric.recording import Recording
from txrdma.fabric.snapshots import writeRecording
from txrdma.mad.agent import MADAgent
from txrdma.monitor.config import parseConfig
from txrdma.monitor.diagnosis.fabricstate import LinkState, stateEvent
from txrdma.monitor.series.historystore import HistoryStore
from txrdma.monitor.series.rows import COUNTERS, Row
from txrdma.sim.clock import SimulatedClock
from txrdma.sim.fabric.fabric import SimulatedFabric
from txrdma.sim.nets.fattree import fatTree
from txrdma.sim.twin import Replay
from txrdma.tap.duty import channelsOf
from txrdma.tap.fabricmonitor import Options
from txrdma.tap.replay import openPast, readRecordings, ReplayService, silent
from txrdma.testing.reactors import waitUntil

reactor: Any = theReactor

CONFIG = """
[web]
listen = "tcp:0:interface=127.0.0.1"

[history]
file = "{history}"

[poll]
interval = 0.1
sweep = 1
settle = 0.1
states = 1
survey = 0

[alerts]
delay = 0
group = 0
log = "{log}"
"""


def recorded(fabric: SimulatedFabric, clock: SimulatedClock, at: float) -> Recording:
    """Record a simulated fabric."""
    agent = MADAgent(clock, fabric.attach())

    async def run() -> Recording:
        found = await Sweep(agent).run()
        return await record(agent, agent.port.endPort, found, at, 64)

    results: list[Recording] = []
    Deferred.fromCoroutine(run()).addCallback(results.append)
    while not results:
        clock.advance(max(0.0, clock.calls[0].getTime() - clock.seconds()))
    agent.close()
    return results[0]


class ReplayTests(TestCase):
    slowBecause = "runs whole monitors of recorded fabrics"

    def setUp(self) -> None:
        clock = SimulatedClock()
        fabric = SimulatedFabric(clock, fatTree(4))
        self.paths = [self.mktemp() for _ in range(2)]
        writeRecording(recorded(fabric, clock, 1000.0), self.paths[1])
        fabric.cut("h00002")
        clock.advance(5.0)
        writeRecording(recorded(fabric, clock, 1060.0), self.paths[0])
        fabric.close()

    async def test_pages(self) -> None:
        """The pages show the fabric of the first snapshot, then that of the next; nothing is written."""
        history, log = self.mktemp(), self.mktemp()
        config = parseConfig(CONFIG.format(history=history, log=log))
        service = ReplayService(reactor, config, readRecordings(self.paths), speed=0.001)
        service.startService()
        try:
            url = urlOf(await service.address())
            poller = service.poller
            await waitUntil(reactor, lambda: poller.fabric is not None)
            assert poller.fabric is not None
            self.assertEqual(len(poller.fabric.nodes), 5)
            assert isinstance(service._replay, Replay)
            service._replay._show()  # as if the time between the snapshots had passed

            def isGone() -> bool:
                return any(one.finding.kind == "node-gone" for one in poller.findings.log.open.values())

            await waitUntil(reactor, isGone, what="the host is gone")
            answer = await Agent(reactor).request(b"GET", url.encode())
            page = (await readBody(answer)).decode()
            self.assertIn("This is a replay of 1970-01-01", page)
            self.assertIn("h00002", page)
        finally:
            await service.stopService()
        self.assertFalse(Path(history).exists() or Path(log).exists())

    async def test_history(self) -> None:
        """With a history, counters and links of one snapshot's fabric are those of the history."""
        recordings = readRecordings(self.paths[1:])
        (fabric,) = (one.fabric for one in recordings)
        host = next(node for node in fabric.hosts() if node.description == "h00001")
        path = self.mktemp()
        store = HistoryStore(path)
        begin = int(time.time()) // 3600 * 3600 - 7200
        rows = []
        for minute in range(60):
            counts: list[float | None] = [0] * len(COUNTERS)
            counts[COUNTERS.index("portXmitData")] = 60_000_000
            rows.append(Row((host.guid, 1), begin + 60 * minute, (60.0, *counts, 0.0, 0.0)))
        store.write(rows, begin + 7200)
        gone = next(node for node in fabric.hosts() if node.description == "h00002")
        ends = next(ends for ends in fabric.links() if gone in (ends[0].node, ends[1].node))
        one, other = ((end.node.guid, end.number) for end in ends)
        for at, change in ((0.0, "came"), (120.0, "gone")):
            store.append([stateEvent(begin + at, change, (one, other), LinkState("one", "other"))])
        store.close()
        text = CONFIG.format(history=self.mktemp(), log=self.mktemp())
        past = openPast(path, datetime.fromtimestamp(begin).isoformat(" "))
        service = ReplayService(reactor, parseConfig(text), recordings, speed=60.0, past=past)
        service.startService()
        try:
            poller = service.poller

            def isCarried() -> bool:
                meter = poller.meters.get((host.guid, 1))
                return meter is not None and 5e7 < (meter.rate("portXmitData") or 0.0) < 7e7

            def isGone() -> bool:
                return gone.guid in poller.topologyWatch.missingNodes

            await waitUntil(reactor, isCarried, what="traffic as in the history")
            await waitUntil(reactor, isGone, what="the host is gone")
        finally:
            await service.stopService()

    def test_silent(self) -> None:
        """A replay sends no notifications of findings of the past."""
        config = parseConfig("""
            [alerts]
            log = "alerts"
            [alerts.webhooks.a]
            url = "http://host.example/"
            [alerts.mail]
            host = "mail.example"
            from = "a@example.com"
            to = ["b@example.com"]
            [alerts.syslog]
            address = "udp:loghost:514"
        """)
        self.assertEqual(len(channelsOf(reactor, config)), 4)
        self.assertEqual(channelsOf(reactor, silent(config)), [])

    def test_mistakes(self) -> None:
        """Files that are not snapshots are refused, and so are configurations of several fabrics."""
        other, several = Path(self.mktemp()), Path(self.mktemp())
        other.write_text('Switch 8 "left"\n')
        several.write_text('[fabrics.north]\nport = "umad"\n')
        for arguments, message in (
            (["--replay", "/nonexistent"], "/nonexistent"),
            (["--replay", str(other)], "not one that txrdma snapshot has written"),
            (["--replay", self.paths[0], "--config", str(several)], "a replay is of one fabric"),
            (["--replay", self.paths[0], "--speed", "0"], "--speed 0"),
            (["--history", "/nonexistent"], "--history needs one --replay"),
            (["--replay", self.paths[0], "--history", "/nonexistent"], "no such file"),
            (["--replay", self.paths[0], "--history", "x", "--begin", "soon"], "--begin soon"),
        ):
            error = self.assertRaises(UsageError, Options().parseOptions, arguments)
            self.assertIn(message, str(error))
