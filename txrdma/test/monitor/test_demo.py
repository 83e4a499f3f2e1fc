"""
The demonstration: its weather, and the command that serves it.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from twisted.internet import reactor as theReactor
from twisted.internet.defer import Deferred
from twisted.internet.protocol import ProcessProtocol
from twisted.python.usage import UsageError
from twisted.trial.unittest import SynchronousTestCase, TestCase
from twisted.web.client import Agent, readBody

from txrdma.commands.demo_fabric import CommandOptions, netOf
from txrdma.mad.agent import MADAgent
from txrdma.monitor.ledger import LedgerEvent, Raised
from txrdma.monitor.poller import FabricPoller
from txrdma.monitor.settings import PollerSettings
from txrdma.sim.clock import SimulatedClock
from txrdma.sim.fabric.fabric import SimulatedFabric
from txrdma.sim.weather import Weather

reactor: Any = theReactor


class WeatherTests(SynchronousTestCase):
    """Weather over a small fat tree, and a monitor in it."""

    def played(self, seed: int, hasFaults: bool = True) -> tuple[Weather, FabricPoller, set[str]]:
        """Play six minutes; the kinds of findings that were raised in them."""
        clock = SimulatedClock()
        fabric = SimulatedFabric(clock, netOf(32))
        agent = MADAgent(clock, fabric.attach())
        self.addCleanup(agent.close)
        raised: set[str] = set()

        def heard(event: LedgerEvent) -> None:
            if isinstance(event, Raised):
                raised.add(event.entry.finding.kind)

        settings = PollerSettings(intervalSeconds=2.0, sweepSeconds=60.0, settleSeconds=1.0)
        poller = FabricPoller(clock, agent, settings, notify=heard)
        weather = Weather(fabric, seed)
        poller.start()
        weather.start(hasFaults)
        end = clock.seconds() + 360.0
        while clock.calls and clock.calls[0].getTime() <= end:
            clock.advance(max(0.0, clock.calls[0].getTime() - clock.seconds()))
        weather.stop()
        return weather, poller, raised

    def test_faults(self) -> None:
        """Within minutes there is a fault of each kind, and the monitor finds it."""
        weather, poller, raised = self.played(1)
        told = " ".join(text for _at, text in weather.told)
        for word in ("rot", "flaps", "dies", "hangs"):
            self.assertIn(word, told)
        self.assertLessEqual({"symbol-errors", "flapping", "node-gone"}, raised)

    def test_seed(self) -> None:
        """The same seed makes the same weather, another one another."""
        first, again, other = (self.played(seed)[0].told for seed in (3, 3, 4))
        self.assertEqual(first, again)
        self.assertNotEqual(first, other)

    def test_calm(self) -> None:
        """Calm weather has traffic, as much into the fabric as out of it, and no findings."""
        weather, poller, raised = self.played(1, hasFaults=False)
        self.assertEqual((weather.told, raised), ([], set()))
        assert poller.fabric is not None
        sums = [0.0, 0.0]
        for node in poller.fabric.hosts():
            meter = poller.meters[node.guid, 1]
            for at, counter in enumerate(("portXmitData", "portRcvData")):
                sums[at] += meter.rate(counter) or 0.0
        self.assertGreater(sums[0], 1e9)
        self.assertAlmostEqual(sums[0] / sums[1], 1.0, delta=0.05)


class CommandTests(TestCase):
    """C{txrdma demo-fabric} in a process of its own."""

    timeout = 120

    def test_hosts(self) -> None:
        """A number of hosts that no such fat tree has is refused."""
        for hosts in ("0", "1000000"):
            self.assertRaises(UsageError, CommandOptions().parseOptions, ["--hosts", hosts])

    def test_listen(self) -> None:
        """A page that others could see is refused by the option's name: nobody is asked for a password."""
        for listen in ("nonsense", "tcp:0", "tcp:0:interface=0.0.0.0"):
            error = self.assertRaises(UsageError, CommandOptions().parseOptions, ["--listen", listen])
            self.assertIn(f"--listen {listen}: the demonstration is for this host alone", str(error))

    def test_command(self) -> Deferred[None]:
        """It tells where its page is, which is there, and ends with Ctrl-C, leaving nothing."""
        return Deferred.fromCoroutine(self._command())

    async def _command(self) -> None:
        process = _Demo()
        folder = self.mktemp()
        os.mkdir(folder)
        words = ["demo-fabric", "--hosts", "16", "--listen", "tcp:0:interface=127.0.0.1"]
        command = [sys.executable, "-c", "from txrdma.command import main; main()", *words]
        environment = {**os.environ, "TMPDIR": os.path.abspath(folder)}
        reactor.spawnProcess(process, sys.executable, command, environment)
        url = await process.told
        response: Any = await Agent(reactor).request(b"GET", url.encode())
        body = await readBody(response)
        self.assertEqual((response.code, b"Fabric monitor" in body), (200, True))
        assert process.transport is not None  # it is connected from its start on
        process.transport.signalProcess(signal.SIGINT)
        code = await process.ended
        self.assertEqual((code, os.listdir(folder)), (0, []))


class _Demo(ProcessProtocol):
    def __init__(self) -> None:
        self.told: Deferred[str] = Deferred()
        self.ended: Deferred[int | None] = Deferred()
        self._said = ""

    def outReceived(self, data: bytes) -> None:
        """Look for the address of the page."""
        self._said += data.decode()
        if "http://" in self._said and not self.told.called:
            self.told.callback("http://" + self._said.partition("http://")[2].split()[0])

    def processEnded(self, reason: Any) -> None:
        """Tell the status."""
        self.ended.callback(reason.value.exitCode)
