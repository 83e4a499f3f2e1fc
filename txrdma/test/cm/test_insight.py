"""
Numbers of communication managers, and C{txrdma cm-stats}, which asks processes for them.
"""

from __future__ import annotations

import io
import os
from collections import Counter
from random import Random
from typing import Any, cast

from rich.console import Console

from twisted.internet import reactor as installedReactor
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase, TestCase

from txrdma.cm.connections.endpoints import RDMAClientEndpoint, RDMAServerEndpoint
from txrdma.cm.connections.protocol import MessageFactory
from txrdma.cm.insight import byKind, report
from txrdma.cm.rping import PingClient, PingServer, TERMS
from txrdma.commands.cm_stats import countersTable, entries
from txrdma.commands.common.counted import ALL, Rates, thenRates
from txrdma.ports.softdevices import softDeviceAt
from txrdma.unixanswers import IReactor, processesIn

reactor = cast(IReactor, installedReactor)


def shown(found: list[dict[str, Any]]) -> str:
    """The table of entries as text."""
    out = io.StringIO()
    Console(file=out, width=200).print(countersTable(found))
    return out.getvalue()


class AskingTests(TestCase):
    """A process with connections of its own."""

    async def ours(self) -> dict[str, Any]:
        """The answer of this process."""
        (found,) = [each for each in await entries(reactor, 5.0) if each["pid"] == os.getpid()]
        return found

    async def test_counters(self) -> None:
        """What a process did can be asked for while it has a manager, and is kept for its next one."""
        random = Random()
        here, there = (f"127.{'.'.join(str(random.randrange(2, 250)) for _ in range(3))}" for _ in range(2))
        before = report()
        others = before["gauges"]  # of tests whose time stands still
        served: list[PingServer] = []

        def serve() -> PingServer:
            served.append(PingServer(lambda ping: None))
            return served[-1]

        endpoint = RDMAServerEndpoint(reactor, 7174, softDeviceAt(there), TERMS)
        port: Any = await endpoint.listen(MessageFactory(serve))
        client = PingClient(2, 10, True, lambda ping: None)
        asking = RDMAClientEndpoint(reactor, there, 7174, softDeviceAt(here), TERMS)
        await asking.connect(MessageFactory(lambda: client))
        during = await self.ours()
        self.assertEqual(during["gauges"]["managers"] - others["managers"], 2)
        self.assertEqual(during["gauges"]["listeners"] - others["listeners"], 1)
        made = sum(during["gauges"]["connections"].values()) - sum(others["connections"].values())
        self.assertEqual(made, 2)
        await client.ended
        await served[0].ended
        after = await self.ours()
        for kind in ("REQ", "REP", "RTU", "DREQ", "DREP"):
            old = before["counters"].get(kind, {})
            told = after["counters"][kind]
            for what in ("sent", "received"):
                self.assertEqual(told[what] - old.get(what, 0), 1, (kind, what))
        await cast("Deferred[None]", port.stopListening())
        while os.getpid() in processesIn("txrdma/cm"):  # as long as timewait
            await self.turn()
        self.assertEqual(report()["counters"], after["counters"])
        self.assertEqual(report()["gauges"], others)

    def turn(self) -> Deferred[None]:
        """Let the reactor turn."""
        done: Deferred[None] = Deferred()
        reactor.callLater(0.01, done.callback, None)
        return done


class ShowingTests(SynchronousTestCase):
    """The table, and rates."""

    def entry(self, factor: int) -> dict[str, Any]:
        """A process that has something to tell."""
        counters = Counter({"sent REQ": 3 * factor, "retried REQ": factor, "received REP": 2 * factor})
        gauges = {"managers": 1, "listeners": 2, "connections": {"ESTABLISHED": 5, "TIMEWAIT": 1}}
        return {"pid": 1, "command": ["python", "[a]"], "counters": byKind(counters), "gauges": gauges}

    def test_kinds(self) -> None:
        """Counters are told by kinds of messages."""
        self.assertEqual(
            self.entry(1)["counters"], {"REQ": {"sent": 3, "retried": 1}, "REP": {"received": 2}}
        )

    def test_table(self) -> None:
        """The table shows connections by state, and a line for each kind of message that there was."""
        text = shown([self.entry(1000), {"pid": 2, "error": "no answer: late"}])
        for words in ("[a]", "5 ESTABLISHED", "1 TIMEWAIT", "2 listeners", "no answer: late"):
            self.assertIn(words, text)
        rows = {line.split("│")[3].strip(): line for line in text.splitlines() if line.count("│") > 8}
        self.assertEqual({*rows} - {""}, {"REQ", "REP"})
        self.assertEqual([cell.strip() for cell in rows["REQ"].split("│")[4:6]], ["3,000", "1,000"])

    def test_nothing(self) -> None:
        """A process that has not said a word has a row, too."""
        quiet = self.entry(0) | {"counters": {}}
        self.assertIn("2 listeners", shown([quiet]))

    def test_rates(self) -> None:
        """Later looks tell what was counted in a second."""
        rates = Rates()
        rates.since([self.entry(1)], 10.0)
        (entry,) = rates.since([self.entry(5)], 12.0)
        self.assertEqual(entry["counters"]["REQ"], {"sent": 6.0, "retried": 2.0})
        self.assertIn("in a second", shown([entry]))
        self.assertNotEqual(entry["pid"], ALL)

    def test_thenRates(self) -> None:
        """The first look tells all that was counted, each later one what was in a second since the last."""
        clock = Clock()
        counts = iter((1, 5, 5))

        async def ask() -> list[dict[str, Any]]:
            return [self.entry(next(counts))]

        asked = thenRates(ask, clock.seconds)
        sent = []
        for _ in range(3):
            (entry,) = self.successResultOf(Deferred.fromCoroutine(asked()))
            sent.append(entry["counters"]["REQ"]["sent"])
            clock.advance(2)
        self.assertEqual(sent, [self.entry(1)["counters"]["REQ"]["sent"], 6.0, 0.0])
