"""Tests for L{txrdma.tap.fabriccollector}: a collector as C{twistd} runs it, over a UNIX socket."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from twisted.internet import reactor as theReactor
from twisted.internet.endpoints import clientFromString
from twisted.python.usage import UsageError
from twisted.trial.unittest import TestCase

from txrdma.mad.agent import MADAgent
from txrdma.mad.ports import openMADPort
from txrdma.monitor.collecting.pool import CollectorPool
from txrdma.monitor.diagnosis.thresholds import ErrorThresholds
from txrdma.monitor.reading.poller import FabricPoller
from txrdma.monitor.reading.settings import PollerSettings
from txrdma.tap.fabriccollector import CollectorService, makeService, Options
from txrdma.testing.reactors import waitUntil

reactor: Any = theReactor

FABRIC = "sim:fattree:4"


class CollectorTests(TestCase):
    timeout = 60

    def setUp(self) -> None:
        self.key = Path(self.mktemp())
        self.key.write_text("a common secret\n")
        folder = TemporaryDirectory()  # paths of UNIX sockets must be short
        self.addCleanup(folder.cleanup)
        self.address = f"unix:{folder.name}/collector"

    def options(self, *more: str) -> Options:
        options = Options()
        words = ["--key-file", str(self.key), "--listen", self.address, "--port", FABRIC]
        options.parseOptions([*words, *more])
        return options

    async def test_service(self) -> None:
        """A monitor gets its counters from the collector, until the collector stops."""
        service = makeService(self.options())
        assert isinstance(service, CollectorService)
        service.privilegedStartService()
        service.startService()
        agent = MADAgent(reactor, openMADPort(reactor, FABRIC))
        self.addCleanup(agent.close)
        endpoints = {"one": clientFromString(reactor, self.address)}
        settings = PollerSettings(intervalSeconds=0.1, settleSeconds=0.1)
        pool = CollectorPool(reactor, agent, endpoints, b"a common secret", settings.timeoutSeconds, 2, 64)
        poller = FabricPoller(reactor, agent, settings, thresholds=ErrorThresholds(), collectors=pool)
        poller.start()
        self.addCleanup(poller.stop)
        await waitUntil(reactor, lambda: pool.sent > 100, 30.0)
        self.assertEqual(poller.statistics.silences, 0)
        await service.stopService()
        await waitUntil(reactor, lambda: not service.factory.connections, 30.0)
        turns = poller.statistics.turns
        await waitUntil(reactor, lambda: poller.statistics.turns > turns + 2, 30.0)
        self.assertEqual(poller.statistics.silences, 0)

    def test_options(self) -> None:
        """Missing options, an unreadable key and an invalid limit are usage errors."""
        self.assertRaises(UsageError, Options().parseOptions, ["--key-file", str(self.key)])
        self.assertRaises(UsageError, Options().parseOptions, ["--listen", self.address])
        self.assertRaises(UsageError, self.options, "--key-file", self.mktemp())
        for number in ("0", "70000", "many", "1" * 5000):
            error = self.assertRaises(UsageError, self.options, "--outstanding", number)
            self.assertEqual(str(error), f"--outstanding {number}: expected 1 to 65535")
        self.assertEqual(self.options("--outstanding", "065")["outstanding"], 65)

    def test_invalid(self) -> None:
        """An invalid endpoint string or port ends C{twistd} with a message."""
        for words in (("--listen", "what:1"), ("--port", "what:1")):
            error = self.assertRaises(SystemExit, makeService, self.options(*words))
            self.assertIn("fabric-collector: ", str(error))
            self.assertIn("what", str(error))
